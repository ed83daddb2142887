-- Tables without rows, in every position.
select nid, nk, nd, ns, ndt from nothing;
select nid from nothing where nk > 1;
select count(*) as n from nothing;
select count(nk) as n, sum(nk) as a, sum(nd) as b, avg(nd) as c, min(ns) as d, max(ndt) as e from nothing;
select nk, count(*) as n, sum(nd) as total from nothing group by nk;
select ns, count(*) as n from nothing group by ns;
select distinct nk from nothing;
select nid, ns from nothing order by ns limit 3;
select id, ns from t join nothing on k = nk;
select id, ns from t left join nothing on k = nk;
select id, ns from t right join nothing on k = nk;
select id, ns from nothing left join t on k = nk;
select id, ns from t full join nothing on k = nk;
select id from t where k in (select nk from nothing);
-- fallback
select id from t where k not in (select nk from nothing);
select id from t where exists (select 1 from nothing where nk = k);
select id from t where not exists (select 1 from nothing where nk = k);
select id from t where d > (select max(nd) from nothing);
select id from t where d > (select count(*) from nothing);
select count(*) as n from t cross join nothing;
select nk, count(*) as n from nothing join nothing as other using (nk) group by nk;
select g, sum(nd) as total from t left join nothing on k = nk group by g;
select count(*) as n from (select nk from nothing group by nk) q;
