-- TPC-H Q12: shipping modes and order priority.
-- :shipmode1 utf8 = MAIL in [REG AIR, AIR, RAIL, SHIP, TRUCK, MAIL, FOB]
-- :shipmode2 utf8 = SHIP as :shipmode1 distinct from :shipmode1
-- :date date = 1994-01-01 in 1993-01-01..1997-01-01 by year
SELECT
    l_shipmode,
    sum(
        CASE WHEN o_orderpriority = '1-URGENT'
            OR o_orderpriority = '2-HIGH' THEN
            1
        ELSE
            0
        END) AS high_line_count,
    sum(
        CASE WHEN o_orderpriority <> '1-URGENT'
            AND o_orderpriority <> '2-HIGH' THEN
            1
        ELSE
            0
        END) AS low_line_count
FROM
    orders,
    lineitem
WHERE
    o_orderkey = l_orderkey
    AND l_shipmode IN (:shipmode1, :shipmode2)
    AND l_commitdate < l_receiptdate
    AND l_shipdate < l_commitdate
    AND l_receiptdate >= :date
    AND l_receiptdate < :date + interval '1' year
GROUP BY
    l_shipmode
ORDER BY
    l_shipmode
