-- The two databases, each with a role of its own. Runs once, when PostgreSQL's data folder is made:
-- compose.yaml and the Kubernetes manifests put it into /docker-entrypoint-initdb.d.
-- The passwords come from the environment of psql (15 or newer).
\getenv prefect_password PREFECT_DATABASE_PASSWORD
\getenv mlflow_password MLFLOW_DATABASE_PASSWORD
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE mlflow OWNER mlflow;
REVOKE CONNECT ON DATABASE prefect, mlflow FROM PUBLIC;
