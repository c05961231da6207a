// SPDX-License-Identifier: Apache-2.0

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;

/** Serves the files of a directory, and answers a POST with what it was sent. */
class Echo {
    private final Path dir;

    Echo(Path dir) {
        this.dir = dir;
    }

    void handle(HttpExchange exchange) throws IOException {
        if (exchange.getRequestMethod().equals("POST")) {
            exchange.sendResponseHeaders(200, 0);
            exchange.getRequestBody().transferTo(exchange.getResponseBody());
        } else {
            byte[] file = Files.readAllBytes(dir.resolve(exchange.getRequestURI().getPath().substring(1)));
            exchange.sendResponseHeaders(200, file.length == 0 ? -1 : file.length);
            exchange.getResponseBody().write(file);
        }
        exchange.close();
    }

    public static void main(String[] args) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(args[0])), 0);
        server.createContext("/", new Echo(Path.of(args[1]))::handle);
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }
}
