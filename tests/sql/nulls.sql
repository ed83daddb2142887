-- Three-valued logic in every operator.
select id from t where k = 2;
select id from t where k <> 2;
select id from t where not (k = 2);
select id from t where k is null;
select id from t where k is not null;
select id from t where k = null;
select id from t where k = 2 or s = 'red';
select id from t where k = 2 and s is null;
select id from t where not (k = 2 or s = 'red');
select id from t where not (k = 2 and g = 1);
select id from t where f;
select id from t where not f;
select id from t where f is null;
select id from t where f is true;
select id from t where f is not true;
select id from t where f is false;
select id from t where f = (k = 2);
select id from t where k in (1, 2);
select id from t where k not in (1, 2);
select id from t where k in (1, null);
select id from t where k not in (1, null);
select id from t where s in ('red', 'blue');
select id from t where s not in ('red', 'blue');
select id from t where k between 1 and 3;
select id from t where k not between 1 and 3;
select id from t where d between 0 and 1;
select id from t where s like 'r%';
select id from t where s not like 'r%';
-- fallback
select id from t where case when k = 2 then true when k is null then null else false end;
select id, case when k > 1 then 'big' when k is null then 'unknown' else 'small' end as c from t;
select id, case k when 1 then 10 when 2 then 20 end as c from t;
select id, case when g = 1 then d end as c from t;
select id, k + 1 as a, k - g as b, k * 2 as c from t;
select id, d * 2 as a, d + 1 as b, -d as c from t;
select id, coalesce(k, -1) as c from t;
select id, coalesce(d, 0) as c from t;
-- fallback
select id, nullif(k, 2) as c from t;
select id, k is null as a, s is not null as b from t;
select id, k = 2 as a, s = 'red' as b from t;
select id, k > 1 or g > 1 as a, k > 1 and g > 1 as b, not (k > 1) as c from t;
select id from t where dt is null or d is null;
select id from t where k = g;
select id from t where s = s;
select id from t where k <> k;
select id from t where (k = 2) is null;
select id from t where (k > 1 or s = 'red') is not true;
select g, count(*) as n from t group by g;
select k, g, count(*) as n from t group by k, g;
select s, count(*) as n from t group by s;
select f, count(*) as n, sum(d) as total from t group by f;
-- fallback
select id from t where k is distinct from 2;
-- fallback
select id from t where k is not distinct from null;
