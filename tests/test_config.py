"""Settings: what is accepted, what is refused with which words, and that no secret gets out."""

from __future__ import annotations

import copy
import dataclasses
import json
import multiprocessing
import os
import pickle
import re
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from lakehouse.config import CatalogConfig, load_config
from lakehouse.errors import ConfigError

EXAMPLE = Path(__file__).parent.parent / "catalog.example.yaml"
SECRET = "PLANTED-7f3a9c"  # no part of it may be seen anywhere


@pytest.fixture(autouse=True)
def no_config_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEHOUSE_CONFIG", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "catalog.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


Write = Callable[[str], Path]


def everything_said_by(error: BaseException) -> str:
    """The text that a log would hold, causes and contexts that are hidden by default included."""
    said = "".join(traceback.format_exception(error))
    for other in (error.__cause__, error.__context__):
        if other is not None and other is not error:
            said += everything_said_by(other)
    return said


# ---- where the settings come from


def test_options_alone(tmp_path: Path) -> None:
    config = load_config(options={"warehouse": tmp_path / "lake"})
    assert dict(config.options) == {"warehouse": str(tmp_path / "lake")}
    assert (config.name, config.warehouse, config.blob_roots) == ("default", str(tmp_path / "lake"), ())


TWO = "catalogs:\n  dev: {warehouse: /dev-lake}\n  prod: {warehouse: /prod-lake}\n"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (TWO + "default: prod\n", None, "prod"),
        (TWO + "default: prod\n", "dev", "dev"),
        (TWO, "dev", "dev"),
        ("catalogs: {only: {warehouse: /only-lake}}", None, "only"),
    ],
)
def test_name_then_default_then_the_only_one(write: Write, text: str, name: str | None, expected: str) -> None:
    config = load_config(write(text), name=name)
    assert (config.name, config.warehouse) == (expected, f"/{expected}-lake")


def test_path_as_text_and_mapping_of_the_files_form(write: Write) -> None:
    path = write(TWO)
    assert load_config(str(path), name="dev").warehouse == "/dev-lake"
    mapping = {"catalogs": {"dev": {"warehouse": "/m"}, "prod": {"warehouse": "/n"}}, "default": "prod"}
    assert load_config(mapping).warehouse == "/n"
    assert load_config(mapping, name="dev").warehouse == "/m"


def test_flat_mapping() -> None:
    config = load_config({"warehouse": "/lake", "s3.path-style-access": True, "read.size": 3})
    assert dict(config.options) == {"warehouse": "/lake", "s3.path-style-access": "true", "read.size": "3"}


def test_options_override_the_file(write: Write) -> None:
    path = write("catalogs: {a: {warehouse: /old, s3.region: here, blob_roots: [/a, /b]}}")
    config = load_config(path, options={"warehouse": "/new", "blob_roots": []})
    assert dict(config.options) == {"warehouse": "/new", "s3.region": "here"}
    assert config.blob_roots == ()


def test_an_override_beats_other_spellings_of_the_same_setting(write: Write) -> None:
    path = write("catalogs: {a: {warehouse: /x, fs.s3.accessKeyId: old, s3a.access.key: old, fs.s3.region: here}}")
    config = load_config(path, options={"s3.access-key": "new"})
    assert dict(config.options) == {"warehouse": "/x", "s3.access-key": "new", "fs.s3.region": "here"}


def test_environment_names_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", str(write(TWO + "default: prod\n")))
    assert load_config().warehouse == "/prod-lake"
    assert load_config(name="dev").warehouse == "/dev-lake"
    assert dict(load_config(options={"s3.region": "r"}).options) == {"warehouse": "/prod-lake", "s3.region": "r"}
    assert load_config({"warehouse": "/given"}).warehouse == "/given"


@pytest.mark.parametrize("options", [{"warehouse": "/own"}, {"warehouse": "/own", "metastore": "filesystem"}])
def test_options_that_stand_alone_ignore_the_environment(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "/does/not/exist.yaml")
    assert load_config(options=options).warehouse == "/own"
    with pytest.raises(ConfigError, match="does/not/exist"):
        load_config(options=options, name="prod")  # a name asks for the file


def test_nothing_is_cached(write: Write) -> None:
    assert load_config(write("catalogs: {a: {warehouse: /one}}")).warehouse == "/one"
    assert load_config(write("catalogs: {a: {warehouse: /two}}")).warehouse == "/two"


# ---- values


def test_text_is_taken_as_written(write: Write) -> None:
    """YAML 1.1 makes 83 of 0123, 1000 of 1_000, 750 of 12:30 and True of yes: passwords are no numbers."""
    config = load_config(
        write(
            "catalogs:\n  a:\n    warehouse: /x\n    x.octal: 0123\n    x.under: 1_000\n    x.sixty: 12:30\n    x.yes: yes\n"
            "    x.float: 1.10\n    x.big: 1e3\n    x.date: 2026-01-02\n    x.true: True\n    x.false: false\n    x.hex: '0x1F'\n"
        )
    )
    assert {key[2:]: value for key, value in config.options.items() if key.startswith("x.")} == {
        "octal": "0123",
        "under": "1_000",
        "sixty": "12:30",
        "yes": "yes",
        "float": "1.10",
        "big": "1e3",
        "date": "2026-01-02",
        "true": "true",
        "false": "false",
        "hex": "0x1F",
    }


def test_python_values_become_paimons_text() -> None:
    config = load_config({"warehouse": "/x", "a.t": True, "a.f": False, "a.i": 7, "a.d": 0.5, "a.p": Path("/p")})
    assert [config.options[f"a.{key}"] for key in "tfidp"] == ["true", "false", "7", "0.5", "/p"]


def test_anchors_and_merges(write: Write) -> None:
    text = "catalogs:\n  a: &a {warehouse: /a, s3.region: r}\n  b: {<<: *a, warehouse: /b}\ndefault: b\n"
    assert dict(load_config(write(text)).options) == {"warehouse": "/b", "s3.region": "r"}
    nested = "catalogs:\n  c: {<<: &b {<<: &a {warehouse: /a, s3.region: r}, warehouse: /b}, warehouse: /c}\n"
    assert dict(load_config(write(nested)).options) == {"warehouse": "/c", "s3.region": "r"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${LAKE}", "/data/lake"),
        ("${LAKE}/sub", "/data/lake/sub"),
        ("/a/${USER_1}/${USER_1}", "/a/ann/ann"),
        ("/a/$${LAKE}", "/a/${LAKE}"),
        ("/a/$${", "/a/${"),
        ("/a/$$${USER_1}", "/a/$${USER_1}"),
        ("/a/$b$", "/a/$b$"),
        ("/a/${NESTED}", "/a/${LAKE}"),  # what comes from the environment is not expanded again
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    for variable, value in {"LAKE": "/data/lake", "USER_1": "ann", "NESTED": "${LAKE}"}.items():
        monkeypatch.setenv(variable, value)
    assert load_config(options={"warehouse": text}).warehouse == expected


def test_variables_only_of_the_chosen_catalog_and_only_in_values(write: Write) -> None:
    path = write("catalogs:\n  a: {warehouse: /a, 'x.${NOT_A_VARIABLE}': 1}\n  b: {warehouse: '${UNSET_VARIABLE}'}\n")
    assert "x.${NOT_A_VARIABLE}" in load_config(path, name="a").options
    with pytest.raises(ConfigError, match=r"warehouse in catalog 'b' of .*catalog\.yaml needs \$\{UNSET_VARIABLE\}.*not set"):
        load_config(path, name="b")


@pytest.mark.parametrize("text", ["/a/${", "/a/${}", "/a/${A-B}", "/a/${A:-" + SECRET + "}"])
def test_malformed_variable(text: str) -> None:
    with pytest.raises(ConfigError, match=r"warehouse in the keywords .*no defaults") as caught:
        load_config(options={"warehouse": text})
    assert SECRET not in everything_said_by(caught.value)


# ---- places


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/lake/", "/lake"),
        ("//lake//a/../b", "/lake/b"),  # a path with two leading slashes is a host's name to pypaimon
        ("lake", "{cwd}/lake"),
        ("./lake", "{cwd}/lake"),
        (".", "{cwd}"),
        ("~/lake", "{home}/lake"),
        ("~", "{home}"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file:/lake", "/lake"),
        ("FILE://localhost/lake#1?x", "/lake#1?x"),
        ("/lake/%41#x?y", "/lake/%41#x?y"),  # no URL: nothing is decoded
        ("a:b/c", "{cwd}/a:b/c"),
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("S3://bucket", "s3://bucket"),
        ("hdfs:///lake", "hdfs:///lake"),
    ],
)
def test_warehouse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, expected: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    place = expected.format(cwd=tmp_path, home="/home/ann")
    config = load_config(options={"warehouse": given, "blob_roots": [given, "/other"]})
    assert config.warehouse == config.options["warehouse"] == place
    assert config.blob_roots == (place, "/other")


def test_relative_paths_start_at_the_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("catalogs: {a: {warehouse: lake, blob_roots: [raw]}}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(path)
    assert (config.warehouse, config.blob_roots) == (str(tmp_path / "lake"), (str(tmp_path / "raw"),))
    assert load_config(path, options={"warehouse": "lake"}).warehouse == str(tmp_path / "elsewhere" / "lake")


def test_a_rest_warehouse_is_a_name() -> None:
    config = load_config(options={"metastore": "rest", "uri": "http://localhost:1", "warehouse": "my_catalog"})
    assert config.warehouse == "my_catalog"


@pytest.mark.parametrize(
    ("warehouse", "said"),
    [
        ("", "has no warehouse"),
        ("  ", "has no warehouse"),
        ("/a\0b", "null character"),
        ("s4://bucket/x", "did you mean 's3://'"),
        ("ftp://host/x", "can't open ftp://"),
        ("s3:/bucket/x", "expected s3://bucket/path"),
        ("s3://", "expected s3://bucket/path"),
        ("file://host/x", "file:///absolute/path"),
        ("file:x", "file:///absolute/path"),
        ("~nobody-of-this-name/x", "no home folder"),
        (f"oss://key:{SECRET}@endpoint/bucket", "holds a password"),
    ],
)
def test_bad_warehouse(warehouse: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"warehouse|{said}") as caught:
        load_config(options={"warehouse": warehouse})
    assert said in str(caught.value)
    assert SECRET not in everything_said_by(caught.value)


# ---- refusals


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("warehose", "warehouse"),
        ("Warehouse", "warehouse"),
        ("blob-roots", "blob_roots"),
        ("s3.acess-key", "s3.access-key"),
        ("s3.access_key", "s3.access.key"),
        ("s3_endpoint", "s3.endpoint"),
        ("fs.s3.accesskeyid", "fs.s3.accessKeyId"),
        ("s3a.endpont", "s3a.endpoint"),
        ("fs.s3a.secret_key", "fs.s3a.secret.key"),
        ("fs.oss.accesskeyId", "fs.oss.accessKeyId"),
        ("oss.endpiont", "oss.endpoint"),
        ("dlf.access-key", "dlf.access-key-id"),
        ("dlf.acces-key-secret", "dlf.access-key-secret"),
        ("token.providr", "token.provider"),
        ("jdbc.pasword", "jdbc.password"),
        ("dlff.region", "dlf.region"),
        ("S3.Endpoint", "s3.endpoint"),
    ],
)
def test_misspelt_option(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(key))) as caught:
        load_config({"warehouse": "/x", key: SECRET})
    assert f"did you mean {nearest!r}?" in str(caught.value)
    assert SECRET not in everything_said_by(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        *("header.X-Anything", "table-default.file.format", "hdfs.config.dfs.nameservices", "dfs.nameservices"),
        *("fs.s3a.connection.maximum", "fs.s3a.endpoint.region", "s3a.signing-algorithm", "fs.oss.download.queue.size"),
        *("fs.obs.endpoint", "jdbc.sslmode", "my.own.option", "logger.level"),
    ],
)
def test_other_systems_options_pass(key: str) -> None:
    assert load_config({"warehouse": "/x", key: "1"}).options[key] == "1"


def test_every_option_that_pypaimon_declares_is_known() -> None:
    from pypaimon.common.options import config as upstream

    source = Path(str(upstream.__file__)).read_text(encoding="utf-8")
    declared = re.findall(r'ConfigOptions\.key\(\s*"([^"]+)"', source)
    assert len(declared) > 40
    for key in declared:
        value = {"metastore": "filesystem", "token.provider": "dlf"}.get(key, "/x")
        load_config({"warehouse": "/x", key: value})


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        ({"catalog": {"a": {}}}, None, "did you mean 'catalogs'?"),
        ({"catalogs": {"a": {"warehouse": "/x"}}, "defalt": "a"}, None, "did you mean 'default'?"),
        ({"catalogs": {"a": {"warehouse": "/x"}}, "warehouse": "/x"}, None, "under `catalogs: NAME:`"),
        ({"catalogs": {"prod": {}, "dev": {}}}, "prd", "did you mean 'prod'?"),
        ({"catalogs": {"prod": {}, "dev": {}}, "default": "qqqqqq"}, None, "there are prod, dev."),
        ({"catalogs": {"prod": {}, "dev": {}}}, None, "no `default`: pass name=, one of prod, dev"),
        ({"catalogs": {"prod": None}}, None, "a mapping of options, got nothing"),
        ({"catalogs": {}}, None, "got an empty mapping"),
        ({"catalogs": ["a"]}, None, "got a list"),
        ({"catalogs": {"prod": {}}}, None, "has no warehouse"),
        ({"warehouse": "/x"}, "prod", "has no such key"),
        ({"warehouse": "/x", "metastore": "filesytem"}, None, "did you mean 'filesystem'?"),
        ({"warehouse": "x", "metastore": "rest"}, None, "has no uri"),
        ({"warehouse": "x", "metastore": "rest", "uri": "u", "token.provider": SECRET}, None, "dlf, or bear"),
        ({"warehouse": "/x", "s3": {"endpoint": SECRET}}, None, "not nested, write s3.endpoint: ..."),
        ({"warehouse": "/x", "uri": None}, None, "got nothing"),
        ({"warehouse": ["/x"]}, None, "got a list"),
        ({"warehouse": "/x", "blob_roots": "/data"}, None, "is a list"),
        ({"warehouse": "/x", "blob_roots": [1, {}]}, None, "got an empty mapping"),
        ({"warehouse": "/x", "blob_roots": [""]}, None, "blob_roots in the mapping given to connect() is empty"),
        ({1: "/x"}, None, "name is a string"),
        ({}, None, "connect(warehouse="),
        (None, None, "connect(warehouse="),
        (None, "prod", "LAKEHOUSE_CONFIG"),
        (7, None, "a path or a mapping"),
    ],
)
def test_refused(config: Any, name: str | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config, name=name)
    assert said in str(caught.value)
    assert SECRET not in everything_said_by(caught.value)


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"given to connect.*{tmp_path}/none.yaml"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=f"{tmp_path} is a folder, not a file"):
        load_config(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_CONFIG", "~/none.yaml")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"LAKEHOUSE_CONFIG names: looked for {tmp_path}/none.yaml"):
        load_config()


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        (f"catalogs:\n  a:\n    token: {SECRET}\n   warehouse: /x\n", 4, 4),
        (f"catalogs: {{a: {{token: {SECRET}\n", 2, 1),
        (f"catalogs:\n  a:\n    token: *{SECRET}\n", 3, 12),
        (f"catalogs:\n  a:\n    token: !{SECRET} x\n", 3, 12),
        (f'catalogs:\n  a:\n    token: "{SECRET}\\q"\n', 3, 28),
        (f"catalogs:\n  a:\n    token: {SECRET}\n    token: {SECRET}\n", 4, 5),
        (f"catalogs:\n  a:\n    token: {SECRET}\x07\n", 3, 26),
        (f"catalogs: {SECRET}\nx: {'[' * 5000}", 1, 1),
    ],
)
def test_yaml_errors_say_where_and_not_what(write: Write, text: str, line: int, column: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    assert f"catalog.yaml, line {line}, column {column}: not valid YAML: " in str(caught.value)
    assert SECRET not in everything_said_by(caught.value)


def test_file_that_is_no_text_or_no_mapping(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "catalog.yaml"
    path.write_bytes(b"catalogs:\n  \xff" + SECRET.encode())
    with pytest.raises(ConfigError, match="line 2, column 3: not valid YAML: not UTF-8") as caught:
        load_config(path)
    assert SECRET not in everything_said_by(caught.value)
    for text, said in ((SECRET, "got a str"), ("", "got nothing"), (f"- {SECRET}", "got a list")):
        with pytest.raises(ConfigError, match=said) as caught:
            load_config(write(text))
        assert SECRET not in everything_said_by(caught.value)


# ---- secrets

SECRET_KEYS = (
    *("token", "s3.access-key", "s3.secret-key", "s3.session-token", "s3a.access.key", "fs.s3a.secret.key"),
    *("fs.s3.accessKeyId", "fs.s3.accessKeySecret", "fs.oss.accessKeyId", "fs.oss.accessKeySecret"),
    *("fs.oss.securityToken", "dlf.access-key-id", "dlf.access-key-secret", "dlf.security-token", "gcs.access-token"),
    *("jdbc.password", "header.Authorization", "header.X-Custom", "custom.api-key", "custom.pwd", "custom.signature"),
    *("fs.azure.account.key.x", "my.credentials", "a.privateKey", "a.client-secret"),
)
URIS = (
    f"jdbc:mysql://ann:{SECRET}@host/db",
    f"jdbc:mysql://ann:{SECRET}/@host/db",
    f"jdbc:mysql://host/db?password={SECRET}",
)


def secretive(**more: str) -> CatalogConfig:
    return load_config({"warehouse": "/lake", **dict.fromkeys(SECRET_KEYS, SECRET), **more})


@pytest.mark.parametrize("uri", URIS)
def test_nothing_shows_a_secret(uri: str) -> None:
    config = secretive(uri=uri)
    assert all(config.options[key] == SECRET for key in SECRET_KEYS)
    assert config.options["uri"] == uri
    shown = [repr(config), str(config), f"{config}", repr(config.options), repr(vars(config)), repr([config])]
    shown += [repr(dataclasses.asdict(config)), repr(dataclasses.astuple(config)), repr(dataclasses.fields(config))]
    shown += [repr(copy.deepcopy(config)), repr(copy.copy(config)), json.dumps(config, default=repr)]
    shown += [json.dumps(config.options, default=repr), json.dumps(dataclasses.asdict(config), default=repr)]
    assert not [text for text in shown if SECRET in text]
    assert "'/lake'" in repr(config)
    assert "'token': '***'" in repr(config)
    with pytest.raises(TypeError):
        json.dumps(config.options)
    assert copy.deepcopy(config) == config


def test_plain_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "metastore": "rest",
        "uri": "http://h:1/x",
        "warehouse": "w",
        "token.provider": "dlf",
        "dlf.region": "r",
        "dlf.token-path": "/p",
        "s3.path-style-access": "true",
        "data-token.enabled": "true",
    }
    assert repr(load_config(settings)) == f"CatalogConfig(name='default', options={settings!r}, blob_roots=())"
    monkeypatch.setenv("MY_PASSWORD", SECRET)
    assert SECRET not in repr(load_config({"warehouse": "/x", "custom.x": "${MY_PASSWORD}"}))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_holds_no_secret(write: Write, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.setenv("PLANTED", SECRET)
    path = write(
        f"catalogs:\n  a:\n    warehouse: /lake\n    token: {SECRET}\n    uri: {URIS[0]}\n    s3.secret-key: ${{PLANTED}}\n"
        f"    x.other: ${{PLANTED}}\n    header.A: Bearer ${{PLANTED}}\n    blob_roots: ['/raw/${{PLANTED}}']\n"
    )
    config = load_config(path, options={"s3.region": "r"})
    for thing in (config, config.options, {"nested": [config]}, (config.options, config)):
        data = pickle.dumps(thing, protocol)
        assert SECRET.encode() not in data
        assert b"PLANTED}" in data
        assert pickle.loads(data) == thing
    restored = pickle.loads(pickle.dumps(config, protocol))
    assert dict(restored.options) == dict(config.options)
    assert (restored.name, restored.blob_roots) == ("a", (f"/raw/{SECRET}",))
    assert pickle.loads(pickle.dumps(restored)) == config  # a second time as well


def test_unpickling_reads_the_secrets_anew(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTATED", "old")
    text = "catalogs:\n  a: {warehouse: /one, token: literal, s3.secret-key: '${ROTATED}'}\n"
    data = pickle.dumps(load_config(write(text)))
    monkeypatch.setenv("ROTATED", "new")
    write(text.replace("/one", "/two").replace("literal", "changed"))
    restored = pickle.loads(data)
    assert (restored.options["token"], restored.options["s3.secret-key"]) == ("changed", "new")
    assert restored.warehouse == "/one"  # not a secret: what was pickled


@pytest.mark.parametrize("change", ["gone", "renamed", "without", "variable"])
def test_unpickling_without_the_secrets_says_so(write: Write, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setenv("VARIABLE", SECRET)
    path = write(f"catalogs:\n  prod: {{warehouse: /lake, token: {SECRET}, s3.secret-key: '${{VARIABLE}}'}}\n")
    data = pickle.dumps(load_config(path))
    if change == "gone":
        path.unlink()
    elif change == "renamed":
        path.write_text(path.read_text().replace("prod", "other"))
    elif change == "without":
        path.write_text("catalogs:\n  prod: {warehouse: /lake}\n")
    else:
        monkeypatch.delenv("VARIABLE")
    said = {
        "gone": "looked for",
        "renamed": "No catalog 'prod'",
        "without": "secrets? token, and",
        "variable": r"\$\{VARIABLE\}",
    }
    with pytest.raises(ConfigError, match=f"'prod' was pickled without its .*{said[change]}") as caught:
        pickle.loads(data)
    assert SECRET not in everything_said_by(caught.value)


def test_secrets_written_out_in_code_are_not_pickled(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(secretive())
    assert SECRET.encode() not in data
    with pytest.raises(ConfigError, match=r"token, s3\.access-key.* written out in Python code.*\$\{VAR\}.*spawn"):
        pickle.loads(data)
    path = write("catalogs: {a: {warehouse: /lake, token: of-the-file}}")  # never taken in place of the one given
    with pytest.raises(ConfigError, match="written out in Python code"):
        pickle.loads(pickle.dumps(load_config(path, options={"token": SECRET})))
    monkeypatch.setenv("PLANTED", SECRET)
    config = load_config({"warehouse": "/lake", "token": "${PLANTED}", "uri": "jdbc:mysql://ann:${PLANTED}@host/db"})
    assert SECRET.encode() not in pickle.dumps(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_pickle_moves_with_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config({"warehouse": "lake", "blob_roots": ["raw"]})
    data = pickle.dumps(config)
    monkeypatch.chdir("/")
    assert pickle.loads(data) == config


def _answer(config: CatalogConfig, answers: Any) -> None:
    answers.put((dict(config.options), config.name, config.blob_roots, repr(config), os.getpid()))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_values_travel_to_a_process_being_spawned(method: str) -> None:
    config = secretive(blob_roots=["/raw"])  # type: ignore[arg-type]
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=_answer, args=(config, answers))
    process.start()
    options, name, roots, shown, pid = answers.get()
    process.join(60)
    assert (options, name, roots) == (dict(config.options), "default", ("/raw",))
    assert shown == repr(config)
    assert pid != os.getpid()


def test_another_threads_pickle_is_plain_meanwhile() -> None:
    spawning: Any = multiprocessing.context
    config = secretive()
    seen: Queue[bytes] = Queue()
    spawning.set_spawning_popen(object())
    try:
        assert SECRET.encode() in pickle.dumps(config)
        thread = threading.Thread(target=lambda: seen.put(pickle.dumps(config)))
        thread.start()
        thread.join()
    finally:
        spawning.set_spawning_popen(None)
    assert SECRET.encode() not in seen.get_nowait()


def test_frozen() -> None:
    config = secretive()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.options = config.options  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.options["token"] = "x"  # type: ignore[index]
    with pytest.raises(AttributeError):
        config.options.extra = 1  # type: ignore[attr-defined]
    assert hash(config) == hash(secretive())
    assert config == secretive()
    assert config != secretive(token="other")
    assert config != secretive(blob_roots=["/raw"])  # type: ignore[arg-type]


# ---- catalog.example.yaml


def test_every_example_profile_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    variables = set(re.findall(r"^[^#\n]*?\$\{(\w+)\}", text, re.MULTILINE))
    profiles = re.findall(r"^  (\w+):$", text, re.MULTILINE)
    assert profiles == ["local", "s3", "minio", "oss", "dlf", "rest", "team"]
    assert load_config(EXAMPLE).name == "local"  # needs no variable
    for profile in profiles[1:]:
        with pytest.raises(ConfigError, match="not set in the environment"):
            load_config(EXAMPLE, name=profile)
    for variable in variables:
        monkeypatch.setenv(variable, f"{SECRET}.{variable.lower()}")
    for profile in profiles:
        config = load_config(EXAMPLE, name=profile)
        secrets = [key for key, value in config.options.items() if SECRET in value and "endpoint" not in value]
        assert secrets or profile == "local"
        assert not [key for key in secrets if config.options[key] in repr(config)]
        for commented in re.findall(r"^ +# ([a-z0-9_.A-Z-]+): ", text, re.MULTILINE):
            load_config(EXAMPLE, name=profile, options={commented: ["/x"] if commented == "blob_roots" else "x"})
    dlf = load_config(EXAMPLE, name="dlf").options
    assert set(dlf) == {
        *(
            "metastore",
            "uri",
            "warehouse",
            "token.provider",
            "dlf.region",
            "dlf.access-key-id",
            "dlf.access-key-secret",
        ),
        "dlf.oss-endpoint",
    }


def test_example_writes_no_secret_out() -> None:
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("#")[0].partition(": ")
        if re.search(r"key|secret|token$", key, re.IGNORECASE):
            assert re.fullmatch(r"\$\{\w+\}", value.strip()), line
