-- TPC-H Q5: local supplier volume.
-- :region utf8 = ASIA in [AFRICA, AMERICA, ASIA, EUROPE, MIDDLE EAST]
-- :date date = 1994-01-01 in 1993-01-01..1997-01-01 by year
SELECT
    n_name,
    sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM
    customer,
    orders,
    lineitem,
    supplier,
    nation,
    region
WHERE
    c_custkey = o_custkey
    AND l_orderkey = o_orderkey
    AND l_suppkey = s_suppkey
    AND c_nationkey = s_nationkey
    AND s_nationkey = n_nationkey
    AND n_regionkey = r_regionkey
    AND r_name = :region
    AND o_orderdate >= :date
    AND o_orderdate < :date + interval '1' year
GROUP BY
    n_name
ORDER BY
    revenue DESC
