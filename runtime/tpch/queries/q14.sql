-- TPC-H Q14: promotion effect.
-- :date date = 1995-09-01 in 1993-01-01..1997-12-01 by month
SELECT
    100.00 * sum(
        CASE WHEN p_type LIKE 'PROMO%' THEN
            l_extendedprice * (1 - l_discount)
        ELSE
            0
        END) / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM
    lineitem,
    part
WHERE
    l_partkey = p_partkey
    AND l_shipdate >= :date
    AND l_shipdate < :date + interval '1' month
