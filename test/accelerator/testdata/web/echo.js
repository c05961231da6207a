// SPDX-License-Identifier: Apache-2.0

// Serves the files of a directory, and answers a POST with what it was sent.
const fs = require("fs");
const http = require("http");
const path = require("path");

const [port, dir] = process.argv.slice(2);

http
	.createServer((request, response) => {
		const from = request.method === "POST" ? request : fs.createReadStream(path.join(dir, path.normalize(request.url)));
		from.on("error", () => response.destroy());
		from.pipe(response);
	})
	.listen(Number(port));
