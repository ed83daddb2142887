-- Integer, decimal and floating-point arithmetic.
select id, k + g as a, k - g as b, k * g as c from t;
select id, k / 2 as a, k % 2 as b from t;
select id, d / 3 as a from t;
select id, d * 1.5 as a, d * 0.01 as b, d + 0.001 as c from t;
select id, d * d as a, d * d * d as b from t;
select id, (1 - d) * (1 + d) as a from t;
select id from t where d = 1;
select id from t where d = 1.00;
select id from t where d > 0.005;
select id from t where d >= -2.5 and d < 3.33;
select id from t where k > 1.5;
select id from t where d = k;
select id from t where d > x;
select id, x * 2 as a, x + k as b, x / 4 as c from t;
select id from t where x > 0.5;
select id, cast(k as double) as a, cast(g as bigint) as b from t;
-- fallback
select id, cast(d as bigint) as a from t;
select id, cast(k as decimal(10,2)) as a from t;
select sum(d) * 0.5 as a, sum(d) + count(*) as b from t;
select sum(k) / count(k) as a from t;
select avg(d) * 2 as a from t;
-- fallback
select id, -k as a, abs(k) as b from t;
select sum(v * d) as a from t join u on k = uk;
-- error: division by zero
select id / (id - id) as a from t;
-- error: division by zero
select d / (d - d) as a from t where d is not null;
