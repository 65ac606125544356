"""All settings, in one frozen class. Names of the environment: ``DIAGNOSER_`` and the field's name in capitals.

Secrets may also come from a file: ``DIAGNOSER_<NAME>_FILE``. An unknown ``DIAGNOSER_`` name stops the start.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from diagnoser.model.errors import BadInput

PREFIX = "DIAGNOSER_"
FILE = "_FILE"

Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """The field's description is what the README's table shows."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on. Loopback unless you say otherwise.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8321, description="Port to listen on; 0 takes a free one.")
    base_url: str = Field("", description="How people reach the pages, for links in alerts; empty: host and port.")
    database_url: str = Field(
        "sqlite:///data/diagnoser.db", description="`sqlite:///path` or `postgresql://user:password@host/name`."
    )
    redis_url: SecretStr = Field(
        SecretStr(""),
        description="`redis://host:6379/0`: replicas wake each other at once; empty: each looks twice a second.",
    )
    tokens: SecretStr = Field(
        SecretStr(""),
        description="Bearer tokens, comma separated, each `read:<token>`, `execute:<token>` (agents) or "
        "`write:<token>` (people, all of it); empty: no authentication, which is accepted on loopback only.",
    )
    rules_dir: Path | None = Field(None, description="Folder of rules, filters and policy; empty: those that ship.")
    prompts_dir: Path | None = Field(None, description="Folder of prompts; empty: those that ship.")

    max_request_bytes: Annotated[int, Field(ge=1024)] = Field(
        64 << 20, description="Largest request body after decompression; more is refused with 413."
    )
    max_buffered_bytes: Annotated[int, Field(ge=1024)] = Field(
        256 << 20, description="Log text that may wait for the database; more is refused with 503."
    )

    exit_grace_seconds: Seconds = Field(1.0, description="Wait for late lines after an attempt has ended.")
    exit_grace_after_fatal_seconds: Seconds = Field(
        0.3, description="The same where the log holds a fatal line already; at most the grace. Later lines revise."
    )
    fatal_debounce_seconds: Seconds = Field(10.0, description="Quiet time after a fatal line before the diagnosis.")
    fatal_debounce_max_seconds: Seconds = Field(
        60.0, description="Longest wait after a fatal line while lines keep coming."
    )
    hang_check_idle_seconds: Seconds = Field(
        300.0, description="A run that has printed nothing for so long is looked at: does it hang?"
    )
    node_log_retention_hours: Annotated[int, Field(ge=1)] = Field(
        24, description="For so many hours of arrival logs of nodes (kernel, syslog, scheduler) are kept."
    )
    baseline_retention_days: Annotated[int, Field(ge=0)] = Field(
        30,
        description="For so many days the clean runs of a job family are remembered: lines that none of them printed "
        "are shown first; 0: off.",
    )
    claim_lease_seconds: Seconds = Field(60.0, description="How long a replica may hold work before another takes it.")

    llm_url: str = Field("", description="OpenAI-compatible server, such as http://127.0.0.1:8000/v1; empty: none.")
    llm_model: str = Field("", description="Model to ask, as the server calls it.")
    llm_api_key: SecretStr = Field(SecretStr(""), description="Key for the model server.")
    llm_trigger: Literal["never", "undecided", "always_explain"] = Field(
        "undecided",
        description="When to ask the model: never, where the rules do not decide, or also to explain a verdict.",
    )
    llm_deadline_seconds: Seconds = Field(20.0, description="The rules' verdict stands when the model takes longer.")
    llm_log_budget_tokens: Annotated[int, Field(ge=500, le=8000)] = Field(
        6000, description="Size of the log view for the model; less where the server has no room for it."
    )
    llm_tokens_per_hour: Annotated[int, Field(ge=0)] = Field(
        1_000_000, description="Tokens read and written within an hour; then the rules decide alone. 0: no limit."
    )
    llm_cost_per_hour: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Cost within an hour, in the currency of the prices; 0: no limit."
    )
    llm_price_per_million_input_tokens: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Price of a million tokens read."
    )
    llm_price_per_million_output_tokens: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Price of a million tokens written."
    )
    llm_breaker_failures: Annotated[int, Field(ge=1)] = Field(
        5, description="Failures of the model server in a row after which it is left alone."
    )
    llm_breaker_seconds: Seconds = Field(60.0, description="For how long it is left alone; then one question tries.")
    embedding_url: str = Field(
        "", description="OpenAI-compatible server for embeddings of failures; empty: hashed words, made here."
    )
    embedding_model: str = Field("", description="Embedding model, as that server calls it. The key is `MODEL_KEY`.")
    rule_promotion_min_hits: Annotated[int, Field(ge=0)] = Field(
        3,
        description="Confirmed hits in shadow, none wrong, after which a learned rule decides; 0: only people promote.",
    )
    filter_learning_enabled: bool = Field(
        True,
        description="Where a model is configured, let it generalise lines that clean runs word differently each time.",
    )
    redact_file: Path | None = Field(
        None, description="More to mask before text goes to a model or a chat: RE2 patterns, one a line."
    )

    webhook_url: str = Field("", description="Where recovery plans go, signed per Standard Webhooks; empty: nowhere.")
    webhook_secret: SecretStr = Field(SecretStr(""), description="Signing secret, `whsec_` and base64.")
    slack_url: SecretStr = Field(SecretStr(""), description="Slack-format incoming webhook for alerts; empty: none.")
    allow_private_targets: bool = Field(
        False, description="Allow webhook targets on loopback and private addresses (a cluster manager inside)."
    )
    recovery_mode: Literal["policy", "observe", "act"] = Field(
        "policy",
        description="`policy`: each row of the table says how far it may go (observe unless it says more); "
        "`observe`: never act; `act`: send every plan to the webhook.",
    )

    plan_lease_seconds: Seconds = Field(
        60.0, description="How long an executor holds a plan without a word before another one takes over."
    )
    webhook_rate_limit: Annotated[float, Field(gt=0)] = Field(20.0, description="Recovery webhooks sent at most.")
    slack_rate_limit: Annotated[float, Field(gt=0)] = Field(1.0, description="Alerts sent at most; Slack takes one.")
    ft_launcher_log_root: Path | None = Field(
        None, description="Folder whose log files `ft_launcher` may ask about (`POST` and `GET /logs`); empty: none."
    )

    log_format: Literal["console", "json"] = Field("console", description="How the service's own log looks.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what ``load`` passes in: the environment is an argument."""
        return (init_settings,)


SECRETS = frozenset(name for name, field in Settings.model_fields.items() if field.annotation is SecretStr)


def load(environment: Mapping[str, str], **overrides: object) -> Settings:
    """Settings of an environment. Raises BadInput that names every fault at once."""
    values: dict[str, object] = {}
    faults: list[str] = []
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        field = name.removeprefix(PREFIX).lower()
        if field.endswith(FILE.lower()) and field.removesuffix(FILE.lower()) in SECRETS:
            try:
                values[field.removesuffix(FILE.lower())] = Path(value).read_text("utf-8").strip()
            except OSError as error:
                faults.append(f"{name}: {error}")
        elif field in Settings.model_fields:
            values[field] = value
        else:
            faults.append(f"{name}: no such setting" + _nearest(field))
    try:
        settings = Settings(**{**values, **overrides})  # type: ignore[arg-type]
    except ValidationError as error:
        faults += [f"{PREFIX}{str(entry['loc'][0]).upper()}: {entry['msg']}" for entry in error.errors()]
    if faults:
        raise BadInput("settings: " + "; ".join(faults))
    return settings


def _nearest(field: str) -> str:
    close = get_close_matches(field, Settings.model_fields, 1)
    return f"; did you mean {PREFIX}{close[0].upper()}?" if close else ""
