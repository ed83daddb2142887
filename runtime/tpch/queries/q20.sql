-- TPC-H Q20: potential part promotion.
-- :color utf8 = forest in [almond, antique, aquamarine, azure, beige, bisque, black, blanched, blue,
--   blush, brown, burlywood, burnished, chartreuse, chiffon, chocolate, coral, cornflower, cornsilk, cream,
--   cyan, dark, deep, dim, dodger, drab, firebrick, floral, forest, frosted, gainsboro, ghost, goldenrod,
--   green, grey, honeydew, hot, indian, ivory, khaki, lace, lavender, lawn, lemon, light, lime, linen,
--   magenta, maroon, medium, metallic, midnight, mint, misty, moccasin, navajo, navy, olive, orange, orchid,
--   pale, papaya, peach, peru, pink, plum, powder, puff, purple, red, rose, rosy, royal, saddle, salmon,
--   sandy, seashell, sienna, sky, slate, smoke, snow, spring, steel, tan, thistle, tomato, turquoise,
--   violet, wheat, white, yellow]
-- :date date = 1994-01-01 in 1993-01-01..1997-01-01 by year
-- :nation utf8 = CANADA in [ALGERIA, ARGENTINA, BRAZIL, CANADA, EGYPT, ETHIOPIA, FRANCE, GERMANY, INDIA,
--   INDONESIA, IRAN, IRAQ, JAPAN, JORDAN, KENYA, MOROCCO, MOZAMBIQUE, PERU, CHINA, ROMANIA, SAUDI ARABIA,
--   VIETNAM, RUSSIA, UNITED KINGDOM, UNITED STATES]
SELECT
    s_name,
    s_address
FROM
    supplier,
    nation
WHERE
    s_suppkey IN (
        SELECT
            ps_suppkey
        FROM
            partsupp
        WHERE
            ps_partkey IN (
                SELECT
                    p_partkey
                FROM
                    part
                WHERE
                    p_name LIKE :color || '%')
                AND ps_availqty > (
                    SELECT
                        0.5 * sum(l_quantity)
                    FROM
                        lineitem
                    WHERE
                        l_partkey = ps_partkey
                        AND l_suppkey = ps_suppkey
                        AND l_shipdate >= :date
                        AND l_shipdate < :date + interval '1' year))
            AND s_nationkey = n_nationkey
            AND n_name = :nation
        ORDER BY
            s_name
