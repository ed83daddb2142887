-- TPC-H Q17: small-quantity-order revenue.
-- :brand utf8 = Brand#23 in [Brand#11, Brand#12, Brand#13, Brand#14, Brand#15, Brand#21, Brand#22,
--   Brand#23, Brand#24, Brand#25, Brand#31, Brand#32, Brand#33, Brand#34, Brand#35, Brand#41, Brand#42,
--   Brand#43, Brand#44, Brand#45, Brand#51, Brand#52, Brand#53, Brand#54, Brand#55]
-- :container utf8 = MED BOX in [SM, LG, MED, JUMBO, WRAP] [CASE, BOX, BAG, JAR, PKG, PACK, CAN, DRUM]
SELECT
    sum(l_extendedprice) / 7.0 AS avg_yearly
FROM
    lineitem,
    part
WHERE
    p_partkey = l_partkey
    AND p_brand = :brand
    AND p_container = :container
    AND l_quantity < (
        SELECT
            0.2 * avg(l_quantity)
        FROM
            lineitem
        WHERE
            l_partkey = p_partkey)
