"""What secrets look like in a log, and what only looks like one.

The patterns are our own, written from the formats that the issuers publish. Maintained rule sets are made for source
code and do not hold up here: detect-secrets 1.5.0 (2024) backtracks, takes 0.4 ms a line, returns values and not their
places, and knows neither W&B, Hugging Face, Databricks, Vault and DigitalOcean tokens nor cookies and ``curl -u``.

RE2 makes one search linear. That replacing every match is linear too follows from the form of the patterns: nothing
but the end of a pattern repeats without a bound, so a search reads little beyond the match that it returns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """kind: shown in place of the secret. pattern: RE2; what its group matches stays, the rest is the secret.

    harmless: RE2 of whole values that are no secrets, "" for none.
    """

    kind: str
    pattern: str
    harmless: str = ""


_QUOTE = r"(?:\\{0,3}[\"'])?"
_IS = rf"(?:{_QUOTE}\s{{0,3}}(?:=>|:=|[=:])\s{{0,3}}|[\"'],\s{{0,3}})"
"""Between a name and its value: an assignment, an entry of a mapping, a pair, or an element of a list of arguments."""
BLANKS = "[\\s\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
"""RE2's blanks are ASCII's alone."""
_VALUE = (
    r"(?:[bBrRuU]?\"(?:[^\"\\\r\n]|\\.)+|[bBrRuU]?'(?:[^'\\\r\n]|\\.)+"
    r"|\\{1,3}\"[^\"\r\n]+|\\{1,3}'[^'\r\n]+|[^\s\"',;&]{3,})"
)
"""In quotes with its blanks, else up to a blank, quote, comma, semicolon or ampersand."""
_START = r"(^|[^A-Za-z0-9]|\\[nrt])"
"""Before a short prefix: ``disk-`` is no ``sk-``. An escaped line break is a boundary as well."""
_NAME = (
    r"(?:pass(?:wd|word)|client_?secret|secret(?:[_ -]?access)?(?:[_ -]?key)?"
    r"|(?:api|account|access|auth|private|encryption)[_ -]?key)(?:_id)?[0-9]{0,2}"
)
_WORDS = r"[A-Za-z]{1,19}(?:[ _./-]+[A-Za-z]{1,19})*"
_HARMLESS = (
    r"(?i)(?:none|null|nil|true|false|yes|no|str|bytes|string|int|bool|any|secretstr"
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[].*|(?:self|os|args?|opts?|config|cfg|settings|env|params|kwargs)\.[\w.]+"  # code
    r"|(?:[a-z]+_)*(?:password|passwd|pwd|token|secret|(?:api_?|secret_?|access_?)*key)"
    r"|\$\{[^}]*|\$[A-Z_]+|\$\(.*|\{[\w.!:]*|%\(\w+\)s|%s|<[^<>]{0,60}>?|\*+|\.{2,}|x{3,}|--.*)?[\"')\]}:.\\]*"
)
"""Nothing yet, a type, code that reads the value elsewhere, a placeholder, or the next argument."""
_NO_CREDENTIAL = (
    rf"{_HARMLESS}|[+-]?[0-9][0-9.,_e+-]*[%a-z/]{{0,8}}[)\]}}]*|{_WORDS}[.:)\]}}]*|[<\[|].*|.{{1,7}}|[^\x21-\x7e].*"
)
"""A token is also a piece of text: counts, words, and what a vocabulary calls ``<|endoftext|>`` or ``[PAD]``."""
_TOKENS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}",  # AWS key ids
    r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=_%-]{40,}",  # AWS session tokens
    r"AIza[A-Za-z0-9_-]{30,}",  # Google API keys
    r"ya29\.[A-Za-z0-9._-]{20,}",  # Google access tokens
    r"GOCSPX-[A-Za-z0-9_-]{20,}",  # Google client secrets
    r"gh[pousr]_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{30,}",
    r"gl(?:pat|dt|rt|ft|soat|cbt|ptt|agent|imt|oas)-[A-Za-z0-9._-]{15,}",
    r"xox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{20,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{40,}",
    r"dckr_[a-z]{3}_[A-Za-z0-9_-]{20,}",
    r"dapi[0-9a-f]{32}(?:-[0-9])?",  # Databricks
    r"hv[sbr]\.[A-Za-z0-9_-]{20,}",  # Vault
    r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"do[opr]_v1_[0-9a-f]{40,}",  # DigitalOcean
    r"hf_[A-Za-z0-9]{20,}",
    r"dgn_[A-Za-z0-9_-]{43}",  # ours
    r"api_org_[A-Za-z0-9]{20,}",  # organisations at Hugging Face
    r"wandb_v1_[A-Za-z0-9_-]{20,}",
    r"local-[0-9a-f]{40}",  # W&B on a server of one's own
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
)
_SHORT_PREFIXES = r"(?:sk-[A-Za-z0-9_-]{20,}|(?:gsk_|r8_|xai-|pplx-)[A-Za-z0-9]{30,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{30,})"

PATTERNS = (
    SecretPattern("private key", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----(?:[^-]|-[^-])*"),
    # What is left of a key block that was cut or whose lines carry prefixes; checksums are hexadecimal.
    SecretPattern("base64", rf"(?m)(^|[|\]:] )[A-Za-z0-9+/]{{60,}}={{0,2}}{BLANKS}$", rf"[^0-9]*|[0-9a-fA-F]*{BLANKS}"),
    SecretPattern("authorization", rf"(?i)(authorization{_IS}{_QUOTE})[^\s\"'][^\"'\r\n]+"),
    SecretPattern("cookie", rf"(?i)(cookie2?{_IS}{_QUOTE})[^\s=;\"']{{1,200}}=[^\"'\r\n]+"),
    SecretPattern("url password", r"(://)[^/\s:@]{0,300}:[^/\s@]{1,1000}@"),
    SecretPattern("url token", r"(https?://)[^/\s:@]{20,500}@"),
    SecretPattern(
        "webhook", r"(https://(?:hooks\.slack\.com/[a-z]{1,20}|discord(?:app)?\.com/api/webhooks)/)[^\s\"']+"
    ),
    SecretPattern(
        "signature",
        r"(?i)([?&](?:sig|signature|access_token|api_?key|x-amz-(?:signature|credential|security-token)"
        r"|x-goog-(?:signature|credential))=)[^&\s\"']{6,}",
    ),
    SecretPattern(
        "password",
        r"(?i)(curl\s(?:[^\n]{0,300}\s)?(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,100}:"
        r"|sshpass\s{1,3}-p\s?[\"']?|machine\s{1,9}\S{1,200}\s{1,9}login\s{1,9}\S{1,200}\s{1,9}password\s{1,9})[^\s\"']+",
    ),
    SecretPattern(
        "secret key",
        r"(?i)((?:AKIA|ASIA)[A-Z0-9]{16}[^A-Za-z0-9+/\n]{1,5}|secret_?(?:access_?)?key[^A-Za-z0-9+/\n]{1,20})"
        r"[A-Za-z0-9+/]{40,}",
    ),
    SecretPattern("token", "|".join(_TOKENS)),
    SecretPattern("token", rf"{_START}{_SHORT_PREFIXES}", harmless=rf"sk-{_WORDS}"),
    # JSON: a JWT, the log-in of a container registry, and DeepSpeed's list of all hosts.
    SecretPattern("base64", r"eyJ[A-Za-z0-9_/+-]{15}[A-Za-z0-9_./+=-]*"),
    SecretPattern("bearer", r"(?i)\b((?:bearer|basic) {1,3})[A-Za-z0-9._~+/=-]{16,}", harmless=_WORDS),
    SecretPattern("wandb key", r"(?i)(wandb[^\n]{0,120}[^A-Za-z0-9\n])[0-9a-f]{40}\b"),
    SecretPattern("passphrase", rf"(?i)(pass_?phrase{_IS}{_QUOTE})[^\s\"'][^\"'\r\n]*"),
    SecretPattern("secret", rf"(?i)({_NAME}{_IS}|--[a-z0-9_-]{{0,60}}{_NAME} ){_VALUE}", harmless=_HARMLESS),
    # The working directory has the same name.
    SecretPattern("secret", rf"(?i)(pwd{_IS}){_VALUE}", harmless=rf"{_HARMLESS}|[~./][\w./~@+-]*"),
    SecretPattern("secret", rf"(?i)(token{_IS}|--[a-z0-9_-]{{0,60}}token ){_VALUE}", harmless=_NO_CREDENTIAL),
    SecretPattern("e-mail", r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+\b"),
    SecretPattern("home", r"(/(?:home|Users)/)[A-Za-z0-9._-]{1,64}"),
)
