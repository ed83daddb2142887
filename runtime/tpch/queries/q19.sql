-- TPC-H Q19: discounted revenue.
-- :brand1 utf8 = Brand#12 in [Brand#11, Brand#12, Brand#13, Brand#14, Brand#15, Brand#21, Brand#22,
--   Brand#23, Brand#24, Brand#25, Brand#31, Brand#32, Brand#33, Brand#34, Brand#35, Brand#41, Brand#42,
--   Brand#43, Brand#44, Brand#45, Brand#51, Brand#52, Brand#53, Brand#54, Brand#55]
-- :brand2 utf8 = Brand#23 as :brand1
-- :brand3 utf8 = Brand#34 as :brand1
-- :quantity1 decimal(15,2) = 1 in 1..10 by 1
-- :quantity2 decimal(15,2) = 10 in 10..20 by 1
-- :quantity3 decimal(15,2) = 20 in 20..30 by 1
SELECT
    sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM
    lineitem,
    part
WHERE (p_partkey = l_partkey
    AND p_brand = :brand1
    AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    AND l_quantity >= :quantity1
    AND l_quantity <= :quantity1 + 10
    AND p_size BETWEEN 1 AND 5
    AND l_shipmode IN ('AIR', 'AIR REG')
    AND l_shipinstruct = 'DELIVER IN PERSON')
    OR (p_partkey = l_partkey
        AND p_brand = :brand2
        AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
        AND l_quantity >= :quantity2
        AND l_quantity <= :quantity2 + 10
        AND p_size BETWEEN 1 AND 10
        AND l_shipmode IN ('AIR', 'AIR REG')
        AND l_shipinstruct = 'DELIVER IN PERSON')
    OR (p_partkey = l_partkey
        AND p_brand = :brand3
        AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
        AND l_quantity >= :quantity3
        AND l_quantity <= :quantity3 + 10
        AND p_size BETWEEN 1 AND 15
        AND l_shipmode IN ('AIR', 'AIR REG')
        AND l_shipinstruct = 'DELIVER IN PERSON')
