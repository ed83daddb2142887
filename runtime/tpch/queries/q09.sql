-- TPC-H Q9: product type profit measure.
-- :color utf8 = green in [almond, antique, aquamarine, azure, beige, bisque, black, blanched, blue, blush,
--   brown, burlywood, burnished, chartreuse, chiffon, chocolate, coral, cornflower, cornsilk, cream, cyan,
--   dark, deep, dim, dodger, drab, firebrick, floral, forest, frosted, gainsboro, ghost, goldenrod, green,
--   grey, honeydew, hot, indian, ivory, khaki, lace, lavender, lawn, lemon, light, lime, linen, magenta,
--   maroon, medium, metallic, midnight, mint, misty, moccasin, navajo, navy, olive, orange, orchid, pale,
--   papaya, peach, peru, pink, plum, powder, puff, purple, red, rose, rosy, royal, saddle, salmon, sandy,
--   seashell, sienna, sky, slate, smoke, snow, spring, steel, tan, thistle, tomato, turquoise, violet,
--   wheat, white, yellow]
SELECT
    nation,
    o_year,
    sum(amount) AS sum_profit
FROM (
    SELECT
        n_name AS nation,
        extract(year FROM o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
    FROM
        part,
        supplier,
        lineitem,
        partsupp,
        orders,
        nation
    WHERE
        s_suppkey = l_suppkey
        AND ps_suppkey = l_suppkey
        AND ps_partkey = l_partkey
        AND p_partkey = l_partkey
        AND o_orderkey = l_orderkey
        AND s_nationkey = n_nationkey
        AND p_name LIKE '%' || :color || '%') AS profit
GROUP BY
    nation,
    o_year
ORDER BY
    nation,
    o_year DESC
