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


_QUOTE = r"(?:\\{0,3}[\"']|&quot;|%22)?"
_IS = rf"(?:{_QUOTE}\s{{0,3}}(?:=>|:=|[=:]|%3[AaDd])\s{{0,3}}|[\"'],\s{{0,3}})"
"""Between a name and its value: an assignment, an entry of a mapping, a pair, or an element of a list of arguments."""
BLANKS = "[\\s\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
"""RE2's blanks are ASCII's alone."""
_VALUE = (
    r"(?:[bBrRuU]?\"(?:[^\"\\\r\n]|\\.)+|[bBrRuU]?'(?:[^'\\\r\n]|\\.)+"
    r"|\\{1,3}\"[^\"\r\n]+|\\{1,3}'[^'\r\n]+|(?:&quot;|%22)[^\s\"'&%]{3,}|[^\s\"',;&]{3,})"
)
"""In quotes with its blanks, else up to a blank, quote, comma, semicolon or ampersand."""
_START = r"(^|[^A-Za-z0-9]|\\[nrt])"
"""Before a short prefix: ``disk-`` is no ``sk-``. An escaped line break is a boundary as well."""
_NAME = (
    r"(?:pass(?:wd|word|code)|client_?secret|secret(?:[_ -]?access)?(?:[_ -]?key)?|credentials?"
    r"|(?:api|app|application|account|access|auth|private|encryption|fernet|license|master|service|shared|signing"
    r"|subscription)[_ -]?key)(?:_id)?[0-9]{0,2}"
)
_WORDS = r"[A-Za-z]{1,19}(?:[ _./-]+[A-Za-z]{1,19})*"
_HARMLESS = (
    r"(?i)(?:none|null|nil|true|false|yes|no|str|bytes|string|int|bool|any|secretstr"
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[].*|(?:self|os|args?|opts?|config|cfg|settings|env|params|kwargs)\.[\w.]+"  # code
    r"|(?:[a-z]+_)*(?:password|passwd|pwd|token|secret|(?:api_?|secret_?|access_?)*key)"
    r"|\$\{[^}]*|\$[A-Z_]+|\$\(.*|\{[\w.!:]*|%\(\w+\)s|%s|<[^<>]{0,60}>?|\*+|\.{2,}|x{3,}|--.*)?[\"')\]}:.\\]*"
)
"""Nothing yet, a type, code that reads the value elsewhere, a placeholder, or the next argument."""
_PATH = r"~?\.{0,2}(?:/[A-Za-z0-9_.@-]{1,30}){2,}/?[)\]}]?"
_FILE = rf"{_HARMLESS}|{_PATH}"
_NUMBER = r"[+-]?[0-9][0-9.,_e+-]*[%a-z/]{0,8}[)\]}]*"
_LOWER_WORDS = r"[A-Za-z]?[a-z]{1,19}(?:[ _./-]+[A-Za-z]?[a-z]{1,19})*[.:)\]}]*"
_NO_CREDENTIAL = rf"{_HARMLESS}|{_PATH}|{_NUMBER}|{_WORDS}[.:)\]}}]*|[<\[|].*|.{{1,7}}|[^\x21-\x7e].*"
"""A token is also a piece of text: counts, words, and what a vocabulary calls ``<|endoftext|>`` or ``[PAD]``."""
_TOKENS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}",  # AWS key ids
    r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=_%-]{40,}",  # AWS session tokens
    r"LTAI[A-Za-z0-9]{16,}",  # Alibaba Cloud key ids
    r"AIza[A-Za-z0-9_-]{30,}",  # Google API keys
    r"ya29\.[A-Za-z0-9._-]{20,}",  # Google access tokens
    r"GOCSPX-[A-Za-z0-9_-]{20,}",  # Google client secrets
    r"[A-Za-z0-9_~.-]{3}8Q~[A-Za-z0-9_~.-]{31,}",  # client secrets of Entra ID
    r"gh[pousr]_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{30,}",
    r"gl(?:pat|dt|rt|ft|soat|cbt|ptt|agent|imt|oas)-[A-Za-z0-9._-]{15,}",
    r"ATATT3[A-Za-z0-9_=-]{40,}",  # Atlassian
    r"ATBB[A-Za-z0-9]{24,}",  # Bitbucket
    r"xox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{20,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{40,}",
    r"rubygems_[0-9a-f]{40,}",
    r"dckr_[a-z]{3}_[A-Za-z0-9_-]{20,}",
    r"dapi[0-9a-f]{32}(?:-[0-9])?",  # Databricks
    r"hv[sbr]\.[A-Za-z0-9_-]{20,}",  # Vault
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}",  # Terraform
    r"pul-[0-9a-f]{40}",  # Pulumi
    r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{30,}",  # Doppler
    r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"do[opr]_v1_[0-9a-f]{40,}",  # DigitalOcean
    r"gl(?:sa|c)_[A-Za-z0-9_+/=]{30,}",  # Grafana
    r"sntry[su]_[A-Za-z0-9_+/=]{30,}",  # Sentry
    r"NRAK-[A-Z0-9]{20,}",  # New Relic
    r"lin_api_[A-Za-z0-9]{30,}",  # Linear
    r"ntn_[A-Za-z0-9]{40,}",  # Notion
    r"PMAK-[0-9a-f]{24}-[0-9a-f]{30,}",  # Postman
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"hf_[A-Za-z0-9]{20,}",
    r"dgn_[A-Za-z0-9_-]{43}",  # ours
    r"api_org_[A-Za-z0-9]{20,}",  # organisations at Hugging Face
    r"wandb_v1_[A-Za-z0-9_-]{20,}",
    r"local-[0-9a-f]{40}",  # W&B on a server of one's own
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{8,}",  # LangSmith
    r"pcsk_[A-Za-z0-9_]{40,}",  # Pinecone
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
    r"MUNGE:[A-Za-z0-9+/=]{40,}",  # what Slurm's daemons sign with
    r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{20,}",  # base64 of "-----BEGIN ", in kubeconfig files
)
_SHORT_PREFIXES = (
    r"(?:sk-[A-Za-z0-9_-]{20,}|(?:gsk_|r8_|xai-|pplx-|rpa_|fw_|sbp_)[A-Za-z0-9]{30,}|SK[0-9a-f]{32}"
    r"|key-[0-9a-f]{32}|[0-9a-f]{32}-us[0-9]{1,2}|(?:bot)?[0-9]{8,10}:AA[A-Za-z0-9_-]{30,})"
)
"""Among them Twilio's, Mailgun's, Mailchimp's and Telegram's."""
_HOOKS = (
    r"hooks\.slack\.com/[a-z]{1,20}/|discord(?:app)?\.com/api/webhooks/|chat\.googleapis\.com/v1/spaces/"
    r"|[a-z0-9.-]{1,100}\.webhook\.office\.com/|outlook\.office(?:365)?\.com/webhook/"
    r"|[a-z0-9.-]{1,100}\.(?:logic\.azure\.com|api\.powerplatform\.com)[^\s\"'?]{0,300}\?"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/(?:v2/)?hook/|events\.pagerduty\.com/integration/"
    r"|maker\.ifttt\.com/trigger/[^\s/\"']{1,100}/"
)
_LOGINS = (
    r"curl\s(?:[^\n]{0,120}\s)?(?:-[a-z]{0,4}u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,60}:"
    r"|sshpass\s{1,3}-p\s?[\"']?"
    r"|machine\s{1,9}\S{1,60}\s{1,9}login\s{1,9}\S{1,60}\s{1,9}password\s{1,9}"
    r"|docker\s{1,3}login\s(?:[^\n]{0,120}\s)?-p[ =]?[\"']?|redis-cli\s(?:[^\n]{0,120}\s)?-a\s{1,3}[\"']?"
    r"|ldap[a-z]{3,9}\s(?:[^\n]{0,120}\s)?-w\s{1,3}[\"']?|-pass(?:in|out)\s{1,3}pass:"
    r"|smbclient\s(?:[^\n]{0,120}\s)?-U\s?[\"']?[^\s%\"']{1,60}%|lftp\s(?:[^\n]{0,120}\s)?-u\s{1,3}[^\s,]{1,60},"
    r"|mongo(?:sh|dump|restore)?\s(?:[^\n]{0,120}\s)?-p\s{1,3}[\"']?"
    r"|htpasswd\s{1,3}-[a-zA-Z]{0,5}b[a-zA-Z]{0,5}\s{1,3}\S{1,60}\s{1,3}\S{1,60}\s{1,3}[\"']?"
)
"""Programs that take a password as a word of its own, and the lines of a netrc file."""
_AUTH_ENTRY = r"(?:\\{0,3}[\"']_?auth\\{0,3}[\"']\s{0,3}:|\b_auth\s{0,3}=)\s{0,3}"
"""In the files of docker and npm: base64 of ``user:password`` follows."""

PATTERNS = (
    SecretPattern("private key", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----(?:[^-]|-[^-])*"),
    # What is left of a key block that was cut or whose lines carry prefixes; checksums are hexadecimal.
    SecretPattern(
        "base64", rf"(?m)(^|[|\]:] )[A-Za-z0-9+/]{{60,}}={{0,2}}{BLANKS}$", rf"[^0-9]*|[0-9a-fA-F]*{BLANKS}|{_PATH}"
    ),
    SecretPattern(
        "authorization",
        rf"(?i)(authorization{_IS}{_QUOTE})[^\s\"'][^\"'\r\n]+",
        harmless=rf"{_HARMLESS}|(?:bearer|basic|token) <[a-z_ -]{{1,40}}>.*",
    ),
    SecretPattern("cookie", rf"(?i)(cookie2?{_IS}{_QUOTE})[^\s=;\"']{{1,200}}=[^\"'\r\n]+"),
    # A password may hold the characters that end it, but what follows a port is a path.
    SecretPattern(
        "url password",
        r"(://)[^/\s:@]{0,100}:(?:[^/\s@\"']{1,1000}@(?:[^/\s@\"',]{1,60}@)?|[^\s@\"']{1,100}@)",
        harmless=r"[^/:@]*:[0-9]{1,5}/.*",
    ),
    SecretPattern("url token", r"(https?://)[^/\s:@]{20,500}@"),
    SecretPattern("webhook", rf"(?i)(https?://(?:{_HOOKS}))[^\s\"']+"),
    SecretPattern(
        "webhook",
        r"(?i)(https?://[^\s/\"'@]{1,200}/(?:[A-Za-z0-9_.-]{1,40}/){0,4}(?:web)?hooks?/)[A-Za-z0-9/_%.~-]{16,}",
        harmless=r"[A-Za-z/_.-]*",
    ),
    SecretPattern(
        "signature",
        r"(?i)([?&](?:sig|sign|signature|(?:access_|api_?|auth_?|id_|refresh_)?token|api_?key|x-amz-(?:signature|credential"
        r"|security-token)|x-goog-(?:signature|credential)|sharedaccesssignature|secret|pass|pwd)=)[^&\s\"']{6,}",
        harmless=r"[0-9]*|<.*",
    ),
    SecretPattern("signature", r"(?i)([?&](?:key|code|auth)=)[A-Za-z0-9_%.~-]{16,}", harmless=_LOWER_WORDS),
    SecretPattern("password", rf"(?i)({_LOGINS})[^\s\"']+", harmless=r"[:$][^\s]*"),
    SecretPattern("password", r"(\b(?:mysql|mariadb)[a-z-]{0,12}\s(?:[^\n]{0,200}\s)?-p[\"']?)[^\s\"']+"),
    SecretPattern(
        "password",
        r"(\becho\s{1,3})(?:-n\s{1,3})?[^\s|;&]{6,200}\s{0,3}\|\s{0,3}(?:sudo\s{1,3}-S|docker\s{1,3}login|kinit)\b",
        harmless=r"[\"']?\$.*",
    ),
    SecretPattern("password", r"(?i)((?:identified\s{1,3}by|password|passwd)\s{1,3})(?:\"[^\"\n]{3,}|'[^'\n]{3,})"),
    SecretPattern("password", r"(?i)(<(?:[a-z0-9_.:-]{0,40})(?:password|passwd|pwd|secret)>)[^<>\n]{3,200}</"),
    # ``auth=("user", "password")``, and a line of .pgpass
    SecretPattern(
        "password",
        r"(?i)((?:auth|credentials?|creds)(?:\s{0,2}[=:]\s{0,2})?\(\s{0,3}[bru]?[\"'][^\"'\n]{1,100}[\"'],\s{0,3})"
        r"[bru]?(?:\"[^\"\n]+|'[^'\n]+)",
    ),
    SecretPattern("password", r"((?:^|\s)[\w.*-]{1,100}:(?:543[0-9]|6432|\*):[\w*-]{1,63}:[\w*.-]{1,63}:)[^\s:]{4,}"),
    SecretPattern(
        "secret key",
        r"((?:AKIA|ASIA)[A-Z0-9]{16}(?:[^A-Za-z0-9+/\n]{1,5}|[^\n]{0,60}[^A-Za-z0-9+/\n])"
        r"|(?i:secret_?(?:access_?)?key)[^A-Za-z0-9+/\n]{1,20})[A-Za-z0-9+/]{40,}",
        harmless="[0-9a-f]*",
    ),
    SecretPattern(
        "secret key",
        r"(^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{40}(?:[^A-Za-z0-9+/\n]{1,5}|[^A-Za-z0-9+/\n][^\n]{0,60})(?:AKIA|ASIA)[A-Z0-9]{16}",
        harmless="[0-9a-f]{40}[^0-9a-f].*",
    ),
    SecretPattern("secret key", r"(AC[0-9a-f]{32}[^A-Za-z0-9\n]{1,5})[0-9a-f]{32}\b"),  # Twilio
    SecretPattern("token", "|".join(_TOKENS)),
    SecretPattern("token", rf"{_START}{_SHORT_PREFIXES}", harmless=rf"sk-{_WORDS}"),
    # JSON: a JWT, the log-in of a container registry, and DeepSpeed's list of all hosts.
    SecretPattern("base64", r"eyJ[A-Za-z0-9_/+-]{15}[A-Za-z0-9_./+=-]*"),
    SecretPattern("base64", rf"(?i)({_AUTH_ENTRY}{_QUOTE})[A-Za-z0-9+/=_-]{{8,}}", harmless=_LOWER_WORDS),
    SecretPattern(
        "bearer",
        r"(?i)((?:\b|%3D|%3A|%20)(?:bearer|basic)(?: |%20|\+){1,3})[A-Za-z0-9._~+/=%-]{10,}",
        # The name of a header is no token: its own value is what must go.
        harmless=rf"{_LOWER_WORDS}|[A-Z]+(?:-[A-Z]+)+|[A-Z][a-z]*(?:-[A-Z][a-z]+)+",
    ),
    # ``user:password``, also url-encoded, after a word that says so.
    SecretPattern(
        "user and password",
        rf"(?i)((?:\bauth|credentials?|creds|user_?pwd|user_?pass){_IS}{_QUOTE})[^\s\"':%(/]{{1,100}}(?::|%3A)[^\s\"',;&]{{6,}}",
        harmless=r"https?:.*|[a-z]+://.*|[0-9:.]*",
    ),
    SecretPattern("wandb key", r"(?i)(wandb[^\n]{0,120}[^A-Za-z0-9\n])[0-9a-f]{40}\b"),
    SecretPattern(  # Kaggle
        "key", r"(\"username\"\s{0,3}:\s{0,3}\"[^\"\n]{1,100}\",\s{0,3}\"key\"\s{0,3}:\s{0,3}\")[0-9a-f]{32}"
    ),
    SecretPattern("passphrase", rf"(?i)(pass_?phrase{_IS}{_QUOTE})[^\s\"'][^\"'\r\n]*"),
    SecretPattern(
        "secret",
        rf"(?i)({_NAME}{_IS}|--[a-z0-9_-]{{0,60}}{_NAME} |--(?:[a-z0-9_-]{{0,60}}-)?pass[ =]){_VALUE}",
        harmless=_FILE,
    ),
    # Passes over the data are counted, too.
    SecretPattern("secret", rf"([A-Z0-9]_(?:PASS|PW)\b{_IS}|SSHPASS{_IS}){_VALUE}", harmless=rf"{_FILE}|{_NUMBER}"),
    SecretPattern(
        "secret", rf"(?i)([a-z0-9][_-]pass{_IS}){_VALUE}", harmless=rf"{_FILE}|{_NUMBER}|{_LOWER_WORDS}|[a-z0-9_]+\(.*"
    ),
    # The working directory has the same name.
    SecretPattern("secret", rf"(?i)(pwd{_IS}){_VALUE}", harmless=rf"{_HARMLESS}|[~./][\w./~@+-]*"),
    SecretPattern("secret", rf"(?i)(token{_IS}|--[a-z0-9_-]{{0,60}}token ){_VALUE}", harmless=_NO_CREDENTIAL),
)
"""Credentials: whoever reads one can act with it."""
PERSONAL = (
    SecretPattern("e-mail", r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+\b"),
    SecretPattern("home", r"(/(?:home|Users)/)[A-Za-z0-9._-]{1,64}"),
)
"""What tells who somebody is."""
