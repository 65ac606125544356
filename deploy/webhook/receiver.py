"""Receives recovery plans: checks each signature, runs a command once for each plan, which gets it as JSON.

DIAGNOSER_WEBHOOK_SECRET=whsec_... python receiver.py 9000 ./act.sh      needs: pip install standardwebhooks
"""

import json
import os
import sqlite3
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

hook = Webhook(os.environ["DIAGNOSER_WEBHOOK_SECRET"])
done = sqlite3.connect("plans.db", isolation_level=None)
done.execute("CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY)")


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(self.take(self.rfile.read(int(self.headers["Content-Length"]))))
        self.end_headers()

    def take(self, body):
        try:
            plan = hook.verify(body, dict(self.headers))["data"]  # also refuses what is older than five minutes
        except WebhookVerificationError:
            return 401
        if not done.execute("SELECT 1 FROM plans WHERE key = ?", (plan["key"],)).fetchone():
            if subprocess.run(sys.argv[2:], input=json.dumps(plan), text=True, check=False).returncode:
                return 503  # it will be sent again, until the plan expires
            done.execute("INSERT INTO plans VALUES (?)", (plan["key"],))
        return 204


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
