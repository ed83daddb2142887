-- TPC-H Q3: shipping priority.
-- :segment utf8 = BUILDING in [AUTOMOBILE, BUILDING, FURNITURE, MACHINERY, HOUSEHOLD]
-- :date date = 1995-03-15 in 1995-03-01..1995-03-31 by day
SELECT
    l_orderkey,
    sum(l_extendedprice * (1 - l_discount)) AS revenue,
    o_orderdate,
    o_shippriority
FROM
    customer,
    orders,
    lineitem
WHERE
    c_mktsegment = :segment
    AND c_custkey = o_custkey
    AND l_orderkey = o_orderkey
    AND o_orderdate < :date
    AND l_shipdate > :date
GROUP BY
    l_orderkey,
    o_orderdate,
    o_shippriority
ORDER BY
    revenue DESC,
    o_orderdate
LIMIT 10
