-- TPC-H Q6: forecasting revenue change.
-- :date date = 1994-01-01 in 1993-01-01..1997-01-01 by year
-- :discount decimal(15,2) = 0.06 in 0.02..0.09 by 0.01
-- :quantity decimal(15,2) = 24 in 24..25 by 1
SELECT
    sum(l_extendedprice * l_discount) AS revenue
FROM
    lineitem
WHERE
    l_shipdate >= :date
    AND l_shipdate < :date + interval '1' year
    AND l_discount BETWEEN :discount - 0.01 AND :discount + 0.01
    AND l_quantity < :quantity
