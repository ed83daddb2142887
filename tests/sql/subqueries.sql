-- Scalar, correlated and derived subqueries.
select id from t where d > (select avg(d) from t);
select id from t where d = (select max(d) from t);
select id from t where d > (select sum(v) from u where v > 100000);
select id, d - (select min(d) from t) as above from t;
select id from t where d < (select sum(v) from u where uk = k);
select id from t where d > (select 0.2 * avg(v) from u where uk = k);
select a.id from t a where a.d = (select max(b.d) from t b where b.g = a.g);
select a.id from t a where a.d < (select avg(b.d) from t b where b.g = a.g);
select a.id from t a where (select count(*) from u where uk = a.k) = 2;
select a.id from t a where (select count(*) from u where uk = a.k) = 0;
-- fallback
select id from t where k = (select uk from u where name = 'two');
-- fallback
select id from t where k = (select uk from u where name = 'nobody');
-- error: more than one row
select id from t where k = (select uk from u);
with m as (select g, sum(d) as total from t group by g) select g, total from m where total > 0;
with m as (select g, sum(d) as total from t group by g) select a.g from m a where a.total = (select max(total) from m);
with m as (select k, count(*) as n from t group by k) select name, n from u join m on uk = k;
select a.id from t a where exists (select 1 from t b where b.k = a.k and b.id <> a.id);
select a.id from t a where not exists (select 1 from t b where b.k = a.k and b.id <> a.id);
select a.id from t a where exists (select 1 from t b where b.k = a.k and b.id <> a.id)
  and not exists (select 1 from t c where c.k = a.k and c.id <> a.id and c.d > 0);
select q.g, q.n from (select g, count(*) as n from t where k is not null group by g) q where q.n >= 2;
select id from t where g in (select g from t group by g having count(*) > 1);
select id, uk from t left join u on k = uk and k > (select min(uk) from u);
