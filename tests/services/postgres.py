"""A private PostgreSQL cluster, in a temporary folder, on a free port of 127.0.0.1."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.process import Service, clean_environment, free_port, new_secret


@dataclass
class Database:
    """A database of its own role."""

    host: str
    port: int
    name: str
    password: str

    def url(self, driver: str) -> str:
        """Its address for SQLAlchemy, such as with the driver `postgresql+asyncpg`."""
        return f"{driver}://{self.name}:{self.password}@{self.host}:{self.port}/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The same for libpq, which also MLflow uses with the address `postgresql+psycopg:///`."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": self.name,
            "PGDATABASE": self.name,
            "PGPASSWORD": self.password,
        }


class Postgres:
    """A PostgreSQL cluster, run by the user `postgres` if we are root, which it refuses."""

    def __init__(self, programs: Path, folder: Path):
        self.programs, self.folder, self.port = programs, folder, free_port()
        self.password = new_secret()
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(folder, user, user)
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": folder}
        options |= {"fsync": "off", "max_connections": "200", "log_min_messages": "warning"}
        command = [str(programs / "postgres"), "-D", str(folder / "data")]
        self.service = Service(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            folder / "log",
            clean_environment(),
            lambda _: self._is_ready(),
            signal.SIGINT,
            folder,
            user,
        )
        self._make(user)

    def _make(self, user: str | None) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        command = [str(self.programs / "initdb"), "--no-sync", "--auth=scram-sha-256", "--username=postgres"]
        command += [f"--pwfile={password}", "--encoding=UTF8", "--locale=C", str(self.folder / "data")]
        (self.folder / "log").touch()
        done = subprocess.run(
            command, user=user, group=user, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        password.unlink()

    def start(self) -> None:
        """Starts it, after `stop` or `kill`, too."""
        self.service.start()

    def stop(self) -> None:
        """A shutdown that ends all connections."""
        self.service.stop()

    def kill(self) -> None:
        """Ends it as a power cut would."""
        self.service.kill()

    @property
    def environment(self) -> dict[str, str]:
        """The administrator's, for PostgreSQL's programs."""
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGPASSWORD": self.password,
        }

    def run(self, *command: str, **environment: str) -> str:
        """What one of PostgreSQL's programs prints."""
        done = subprocess.run(
            command,
            env=clean_environment(**self.environment | environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def database(self) -> Database:
        """A fresh database."""
        made = Database("127.0.0.1", self.port, f"test_{secrets.token_hex(4)}", new_secret())
        self.run("psql", "-qc", f"CREATE ROLE {made.name} LOGIN PASSWORD '{made.password}'")
        self.run("createdb", "--owner", made.name, made.name)
        return made

    def _is_ready(self) -> bool:
        command = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0


def server_programs() -> Path:
    """The folder of PostgreSQL's server programs, the newest version's."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = shutil.which("postgres")
    if not found and not places:
        pytest.skip("needs PostgreSQL's server (Debian: apt-get install postgresql)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("needs a user `postgres`: PostgreSQL refuses to be run by root")
    return places[-1] if places else Path(str(found)).parent
