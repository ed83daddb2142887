-- ORDER BY, LIMIT and OFFSET; every order is complete.
select id, k from t order by k, id;
select id, k from t order by k desc, id;
select id, k from t order by k nulls first, id desc;
select id, k from t order by k desc nulls last, id;
select id, s from t order by s, id;
select id, s from t order by s desc, id desc;
select id, d from t order by d, id limit 3;
select id, d from t order by d desc, id limit 3;
select id, d from t order by d desc nulls last, id limit 3 offset 2;
select id, x from t order by x, id;
select id, dt from t order by dt desc nulls last, id limit 4;
select id from t order by k, g, id;
select id from t order by id limit 0;
select id from t order by id limit 100 offset 8;
select id from t order by id limit 5 offset 20;
select g, count(*) as n from t group by g order by n desc, g;
select g, sum(d) as total from t group by g order by total desc nulls last, g limit 2;
select wid, txt from w order by txt limit 7;
select wid, txt from w order by txt desc limit 7 offset 3;
select txt from w where grp = 3 order by wid desc limit 5;
select grp, txt from w order by grp desc nulls first, txt limit 20;
-- fallback
select count(*) as n from (select id from t order by id limit 3) q;
select id, d + 1 as e from t order by d + 1, id;
select f, id from t order by f, id;
