// One HTTP request at a time, by libcurl, which also signs. This is the only file that knows
// libcurl. It follows no redirect, repeats nothing and keeps no cookie: its callers decide all
// that.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa {

// What a request is signed with (AWS Signature Version 4, for the service s3).
struct HttpSignature {
  std::string key_id, secret;
  std::string session_token;  // of temporary credentials; empty: none
  std::string region;
  std::string
      body_sha256 =  // of the request's body, in hexadecimal digits; without one, of nothing
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
};

struct HttpRequest {
  std::string url;           // http or https; one that is signed has its query sorted and encoded
  std::string range;         // "0-1023": the bytes that are asked for; empty: all
  std::string bearer;        // sent as Authorization: Bearer; empty: none
  bool any_address = false;  // also loopback, private and link-local addresses
  bool proxy = false;        // use the proxy that the environment names, if it names one; if not, a
                             // connection that fails says that there is one
  size_t most_bytes = 0;     // of the body; a longer one is cut off there
  absl::Duration stall;      // longest time without a byte, also of connecting
  absl::Duration total = absl::InfiniteDuration();  // longest time of the whole request
  std::vector<std::string> headers;                 // further ones: "Name: value"
  std::optional<HttpSignature> signature;
  // Takes the body of an answer with the status 200 in parts, as they come, in place of
  // HttpReply.body and without a limit; false ends the transfer as `cancelled` does.
  std::function<bool(std::string_view part)> on_body = {};
};

// What was received. A transfer that failed has a `fault`, and perhaps a part of the answer.
struct HttpReply {
  int status = 0;                // 0: no answer
  std::string fault;             // in words, for messages; empty if the answer is complete
  bool refused_address = false;  // the host has only addresses that are not public
  bool unknown_host = false;     // the host's name has no address
  bool untrusted = false;        // the server's certificate cannot be verified
  bool too_long = false;         // the body has more than most_bytes bytes
  std::string body;
  // Headers; empty if the answer has none.
  std::string etag, last_modified, location, retry_after, content_range, content_encoding, link,
      bucket_region, encryption;
};

// Only one thread at a time may use a client. Connections are kept for the next request.
class HttpClient {
 public:
  // `cancelled` is looked at about once a second, and `bytes` counts what is received; both must
  // outlive the client.
  HttpClient(const std::atomic<bool>* cancelled, std::atomic<int64_t>* bytes);
  ~HttpClient();

  HttpReply Get(const HttpRequest& request);

  // Sends `body` by POST on a connection of its own: on a kept one that the server has just closed
  // the request would be sent a second time. Name its Content-Type in request.headers.
  HttpReply Post(const HttpRequest& request, std::string_view body);

  // The same by PUT, on a kept connection: what is sent twice has the same effect.
  HttpReply Put(const HttpRequest& request, std::string_view body);

  HttpReply Delete(const HttpRequest& request);

 private:
  struct Transfer;
  HttpReply Perform(const HttpRequest& request, const char* method, const std::string_view* body);
  void DropOtherConnections(bool any_address);
  void SetOptions(const HttpRequest& request);
  void SetBody(std::string_view body);
  void Sign(const HttpSignature& signature);
  void SetCallbacks(Transfer* transfer);

  const std::atomic<bool>* const cancelled_;
  std::atomic<int64_t>* const bytes_;
  void* curl_;
  bool any_address_ = false;  // of the kept connections
};

// The URL to which the Location or Link `reference` leads, which may be relative to `base`.
absl::StatusOr<std::string> ResolveReference(const std::string& base, const std::string& reference);

// `text` with everything percent-encoded but letters, digits, `-._~` and slashes.
std::string EncodePath(const std::string& text);

}  // namespace nsa
