"""An assistant's side of a session, with the SDK's own client: `python mcp_session.py`, in the environment of the SDK.

Reads JSON from standard input: the command of the server, its environment, and the calls of tools, each a name and
arguments. Writes JSON: the instructions, the tools, and what each call answered.
"""

import asyncio
import json
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters


async def main() -> None:
    given = json.load(sys.stdin)
    command, *arguments = given["command"]
    server = StdioServerParameters(command=command, args=arguments, env=given["environment"])
    async with Client(server) as client:
        listed = await client.list_tools()
        tools = {
            tool.name: {
                "description": tool.description,
                "read_only": bool(tool.annotations and tool.annotations.read_only_hint),
                "schema": tool.input_schema,
            }
            for tool in listed.tools
        }
        answers = []
        for name, named in given["calls"]:
            result = await client.call_tool(name, named)
            text = "".join(getattr(part, "text", "") for part in result.content)
            answers.append({"is_error": bool(result.is_error), "text": text})
        told = {"instructions": client.instructions, "tools": tools, "answers": answers}
        json.dump(told, sys.stdout)


asyncio.run(main())
