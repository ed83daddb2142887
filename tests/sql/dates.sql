-- Dates: comparison, intervals, parts.
select id from t where dt = date '1995-01-01';
select id from t where dt < date '1970-01-01';
select id from t where dt >= date '1995-01-01' and dt < date '1995-01-01' + interval '1' month;
select id from t where dt between date '1995-01-01' and date '1995-12-31';
select id from t where dt + interval '1' day = date '1995-01-02';
select id, dt + interval '1' month as later, dt - interval '13' month as earlier from t;
select id, dt + interval '1' year as later, dt - interval '40' day as earlier from t;
select id from t where dt > date '1996-02-29' - interval '1' year;
select id, extract(year from dt) as y from t;
select id, extract(month from dt) as m, extract(day from dt) as d from t;
select extract(year from dt) as y, count(*) as n from t group by extract(year from dt);
select min(dt) as a, max(dt) as b, count(dt) as n from t;
select a.id, b.id as other from t a join t b on a.dt = b.dt where a.id < b.id;
select a.id, b.id as other from t a join t b on a.id = b.id + 1 where a.dt > b.dt;
select dt, sum(d) as total from t group by dt;
select id from t where dt <> date '1995-01-01';
