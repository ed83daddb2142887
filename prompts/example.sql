-- The query of the worked examples: a join, a group-by, and a column with NULLs. A region without any discount has a
-- NULL sum.
-- :day date = 2024-07-01 in 2024-01-01..2024-12-01 by month
SELECT
    st_region,
    count(*) AS sales,
    sum(sa_discount) AS discount
FROM
    sales
    JOIN stores ON sa_store = st_id
WHERE
    sa_day >= :day
GROUP BY
    st_region
ORDER BY
    st_region
