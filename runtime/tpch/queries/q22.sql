-- TPC-H Q22: global sales opportunity.
-- :code1 utf8 = 13 in [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
--   31, 32, 33, 34]
-- :code2 utf8 = 31 as :code1 distinct from :code1
-- :code3 utf8 = 23 as :code1 distinct from :code1, :code2
-- :code4 utf8 = 29 as :code1 distinct from :code1, :code2, :code3
-- :code5 utf8 = 30 as :code1 distinct from :code1, :code2, :code3, :code4
-- :code6 utf8 = 18 as :code1 distinct from :code1, :code2, :code3, :code4, :code5
-- :code7 utf8 = 17 as :code1 distinct from :code1, :code2, :code3, :code4, :code5, :code6
SELECT
    cntrycode,
    count(*) AS numcust,
    sum(c_acctbal) AS totacctbal
FROM (
    SELECT
        substring(c_phone FROM 1 FOR 2) AS cntrycode,
        c_acctbal
    FROM
        customer
    WHERE
        substring(c_phone FROM 1 FOR 2) IN (:code1, :code2, :code3, :code4, :code5, :code6, :code7)
        AND c_acctbal > (
            SELECT
                avg(c_acctbal)
            FROM
                customer
            WHERE
                c_acctbal > 0.00
                AND substring(c_phone FROM 1 FOR 2) IN (:code1, :code2, :code3, :code4, :code5, :code6, :code7))
            AND NOT EXISTS (
                SELECT
                    *
                FROM
                    orders
                WHERE
                    o_custkey = c_custkey)) AS custsale
GROUP BY
    cntrycode
ORDER BY
    cntrycode
