-- Every kind of join, with NULL and duplicate keys on both sides.
select id, name from t join u on k = uk;
select id, name from t, u where k = uk;
select id, name from t left join u on k = uk;
select id, name from t right join u on k = uk;
select id, name from t full join u on k = uk;
select id, name from t join u on k = uk and v > 0;
select id, name from t left join u on k = uk and v > 0;
select id, name from t left join u on k = uk and d > 0;
select id, name from t left join u on k = uk where v > 0;
select id, name from t left join u on k = uk where name is null;
select id, name from t left join u on k = uk where name is null or v < 0;
select id from t where exists (select 1 from u where uk = k);
select id from t where not exists (select 1 from u where uk = k);
select id from t left semi join u on k = uk;
select id from t left anti join u on k = uk;
select id from t where k in (select uk from u);
select id from t where k in (select uk from u where v > 0);
-- fallback
select id from t where k not in (select uk from u);
-- fallback
select id from t where k not in (select uk from u where uk is not null);
-- fallback
select id from t where g not in (select uk from u where uk is not null);
select id from t where exists (select 1 from u where uk = k and v > d);
select id from t where not exists (select 1 from u where uk = k and v > d);
select a.id, b.id as other from t a join t b on a.k = b.k where a.id < b.id;
select a.id, b.id as other from t a join t b on a.k = b.g;
select a.id, b.id as other from t a join t b on a.k = b.k and a.g = b.g;
select a.id, b.id as other from t a join t b on a.s = b.s;
select id, name from t join u on s = name;
select count(*) as n from t cross join u;
select count(*) as n from t join u on k < uk;
select t.id, u.name, w.txt from t join u on k = uk join w on wid = id;
select t.id, u.name, w.txt from t left join u on k = uk left join w on wid = id * 20;
select name, count(*) as n, sum(d) as total from t join u on k = uk group by name;
select name, count(id) as n, sum(d) as total from u left join t on k = uk group by name;
select g, sum(v) as total from t left join u on k = uk group by g;
select count(*) as n from w a join w b on a.grp = b.grp;
select a.grp, count(*) as n from w a join w b on a.wid = b.wid + 1 group by a.grp;
select id from t join (select uk, max(v) as top from u group by uk) m on k = uk where top > 0;
