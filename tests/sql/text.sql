-- Text: comparison, LIKE, substrings, grouping, long text that is fetched last.
select id from t where s = '';
select id from t where s > 'green';
select id from t where s <= 'blue';
select id from t where s like '%r%';
select id from t where s like '_ed';
select id from t where s like 'gr_n';
select id from t where s like 'a\%b\_c';
select id from t where s like '%';
select id from t where s like '';
select id from t where s not like '%e%e%';
select id from t where s like 'R%' or s like '%n';
select id from t where substring(s from 1 for 2) = 'gr';
select id, substring(s from 2 for 3) as p from t;
select substring(s from 1 for 1) as p, count(*) as n from t group by substring(s from 1 for 1);
select substring(txt from 1 for 5) as p, count(*) as n from w group by substring(txt from 1 for 5);
select wid, txt from w where txt like '%9 of 2%';
select wid, txt from w where txt like 'row 1_ of %';
select wid from w where txt = 'row 17 of 223';
select wid from w where txt in ('row 0 of 0', 'row 1 of 119', 'nothing');
select wid from w where txt < 'row 10';
select count(*) as n from w where txt not like '%1%';
-- fallback
select id, upper(s) as u from t;
-- fallback
select id, s || '!' as e from t;
-- fallback
select id from t where s || 'x' = 'redx';
-- fallback
select id, length(s) as n from t;
-- fallback
select id from t where char_length(s) > 3;
select a.id, b.txt from t a join w b on a.id = b.wid where b.txt like '%of%';
