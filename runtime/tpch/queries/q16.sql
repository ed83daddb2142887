-- TPC-H Q16: parts/supplier relationship.
-- :brand utf8 = Brand#45 in [Brand#11, Brand#12, Brand#13, Brand#14, Brand#15, Brand#21, Brand#22,
--   Brand#23, Brand#24, Brand#25, Brand#31, Brand#32, Brand#33, Brand#34, Brand#35, Brand#41, Brand#42,
--   Brand#43, Brand#44, Brand#45, Brand#51, Brand#52, Brand#53, Brand#54, Brand#55]
-- :type utf8 = MEDIUM POLISHED in [STANDARD, SMALL, MEDIUM, LARGE, ECONOMY, PROMO] [ANODIZED, BURNISHED,
--   PLATED, POLISHED, BRUSHED]
-- :size1 int32 = 49 in 1..50
-- :size2 int32 = 14 as :size1 distinct from :size1
-- :size3 int32 = 23 as :size1 distinct from :size1, :size2
-- :size4 int32 = 45 as :size1 distinct from :size1, :size2, :size3
-- :size5 int32 = 19 as :size1 distinct from :size1, :size2, :size3, :size4
-- :size6 int32 = 3 as :size1 distinct from :size1, :size2, :size3, :size4, :size5
-- :size7 int32 = 36 as :size1 distinct from :size1, :size2, :size3, :size4, :size5, :size6
-- :size8 int32 = 9 as :size1 distinct from :size1, :size2, :size3, :size4, :size5, :size6, :size7
SELECT
    p_brand,
    p_type,
    p_size,
    count(DISTINCT ps_suppkey) AS supplier_cnt
FROM
    partsupp,
    part
WHERE
    p_partkey = ps_partkey
    AND p_brand <> :brand
    AND p_type NOT LIKE :type || '%'
    AND p_size IN (:size1, :size2, :size3, :size4, :size5, :size6, :size7, :size8)
    AND ps_suppkey NOT IN (
        SELECT
            s_suppkey
        FROM
            supplier
        WHERE
            s_comment LIKE '%Customer%Complaints%')
GROUP BY
    p_brand,
    p_type,
    p_size
ORDER BY
    supplier_cnt DESC,
    p_brand,
    p_type,
    p_size
