-- Types whose values we print otherwise, for good: everything else on their lines is the same.
CREATE TYPE raw_pair AS (a int, b regclass);
CREATE DOMAIN raw_domain AS raw_pair;
CREATE TABLE other (id int PRIMARY KEY, rc regclass, rt regtype, rp regproc, rpp regprocedure, ro regoper, roo regoperator, rr regrole, rn regnamespace, rcf regconfig, rd regdictionary, rco regcollation, rcs regclass[], acl aclitem, acls aclitem[], pa raw_pair, dp raw_domain, last text);
INSERT INTO other VALUES (1, 'other', 'raw_pair', 'now', 'now()', '||/', '+(int4,int4)', 'postgres', 'public', 'simple', 'simple', '"C"', '{other,pg_class}', 'postgres=r/postgres', '{postgres=rw/postgres}', '(1,pg_class)', '(2,other)', 'end');
INSERT INTO other (id, last) VALUES (2, 'nulls');
INSERT INTO other (id, rc, rt, last) VALUES (4, 0, 0, 'none');
UPDATE other SET last = repeat('x', 20), rc = 'pg_class' WHERE id = 1;
UPDATE other SET id = 3 WHERE id = 2;
ALTER TABLE other REPLICA IDENTITY FULL;
UPDATE other SET last = NULL;
DELETE FROM other;
