// One HTTP request and its reply, without the library that carries them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nsa::server {

struct HttpRequest {
  std::string method;                          // "GET"
  std::string path;                            // decoded, begins with '/'
  std::map<std::string, std::string> query;    // decoded; the last value of a name counts
  std::map<std::string, std::string> headers;  // by lower-case name
  std::string body;                            // at most 16 KiB

  // The value, or empty.
  std::string Query(const std::string& name) const { return Find(query, name); }
  std::string Header(const std::string& name) const { return Find(headers, name); }

 private:
  static std::string Find(const std::map<std::string, std::string>& in, const std::string& name) {
    const auto found = in.find(name);
    return found == in.end() ? "" : found->second;
  }
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Set for a stream: called again and again on the request's thread, it returns what to send next
  // and waits while there is nothing, for at most a few seconds. Nothing ends the stream.
  std::function<std::optional<std::string>()> more;
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

}  // namespace nsa::server
