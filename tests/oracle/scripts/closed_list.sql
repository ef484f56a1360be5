-- Types whose values we print otherwise, for good: everything else on their lines is the same.
CREATE TYPE raw_pair AS (a int, b regproc);
CREATE DOMAIN raw_domain AS raw_pair;
CREATE TABLE other (id int PRIMARY KEY, rp regproc, rpp regprocedure, ro regoper, roo regoperator, rr regrole, rcf regconfig, rd regdictionary, rco regcollation, rps regproc[], acl aclitem, acls aclitem[], pa raw_pair, dp raw_domain, last text);
INSERT INTO other VALUES (1, 'now', 'now()', '||/', '+(int4,int4)', 'postgres', 'simple', 'simple', '"C"', '{now,NULL}', 'postgres=r/postgres', '{postgres=rw/postgres}', '(1,now)', '(2,now)', 'end');
INSERT INTO other (id, last) VALUES (2, 'nulls');
INSERT INTO other (id, rp, rr, last) VALUES (4, 0, 0, 'none');
UPDATE other SET last = repeat('x', 20), rp = 'pi' WHERE id = 1;
UPDATE other SET id = 3 WHERE id = 2;
ALTER TABLE other REPLICA IDENTITY FULL;
UPDATE other SET last = NULL;
DELETE FROM other;
