#include "common/http/http.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/http/public_address.h"

namespace nsa {
namespace {

constexpr size_t kLongestHeader = 8 << 10;

// libcurl must be set up once, before any thread uses it.
void* NewHandle() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  return ready == CURLE_OK ? curl_easy_init() : nullptr;
}

struct HeaderField {
  std::string_view name;
  std::string HttpReply::*to;
};
constexpr HeaderField kFields[] = {
    {"etag", &HttpReply::etag},
    {"last-modified", &HttpReply::last_modified},
    {"location", &HttpReply::location},
    {"retry-after", &HttpReply::retry_after},
    {"content-range", &HttpReply::content_range},
    {"content-encoding", &HttpReply::content_encoding},
    {"link", &HttpReply::link},
    {"x-amz-bucket-region", &HttpReply::bucket_region},
    {"x-amz-server-side-encryption", &HttpReply::encryption},
};

// The variable that names a proxy for this URL, as libcurl looks for one; empty: none does.
std::string ProxyVariable(const std::string& url) {
  std::vector<const char*> names = {"http_proxy", "all_proxy", "ALL_PROXY"};
  if (url.starts_with("https:")) names = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
  const auto set = std::ranges::find_if(names, [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  });
  return set == names.end() ? "" : *set;
}

// A machine that reaches others only by a proxy looks like one whose network is down. The proxy's
// address is not shown: it may have a password.
std::string UnusedProxy(const HttpRequest& request) {
  const std::string variable = request.proxy ? "" : ProxyVariable(request.url);
  if (variable.empty()) return "";
  return absl::StrCat(" (", variable,
                      " is set and not used, because behind a proxy nobody sees to which address a "
                      "name leads; it is used if allowed_urls is *)");
}

// To be freed by curl_slist_free_all().
curl_slist* HeadersOf(const HttpRequest& request, bool has_body) {
  curl_slist* headers = nullptr;
  const auto add = [&headers](const std::string& header) {
    headers = curl_slist_append(headers, header.c_str());
  };
  if (request.signature) {
    add("x-amz-content-sha256: " + request.signature->body_sha256);
    if (!request.signature->session_token.empty()) {
      add("x-amz-security-token: " + request.signature->session_token);
    }
  } else {
    // Not in a signed request, because proxies change this one, which voids the signature, and
    // because libcurl 7.88 would sign a header that is only named, so that nothing is sent. Without
    // the latter a long body waits a second for an interim answer that few servers give.
    add("Accept-Encoding: identity");
    if (has_body) add("Expect:");
  }
  if (!request.bearer.empty()) add("Authorization: Bearer " + request.bearer);
  for (const std::string& header : request.headers) add(header);
  return headers;
}

}  // namespace

// What libcurl's callbacks of one request share.
struct HttpClient::Transfer {
  HttpClient* client;
  const HttpRequest& request;
  HttpReply* reply;
  int64_t moved = 0;  // bytes received and sent
  absl::Duration last_byte = RealClock().Monotonic();
  std::string stopped;  // why a callback ended the transfer

  static size_t OnBody(char* data, size_t, size_t count, void* self) {
    return static_cast<Transfer*>(self)->Body({data, count});
  }
  static size_t OnHeader(char* data, size_t, size_t count, void* self) {
    static_cast<Transfer*>(self)->Header({data, count});
    return count;
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
    return static_cast<Transfer*>(self)->Stop(received + sent) ? 1 : 0;
  }
  static curl_socket_t OnSocket(void* self, curlsocktype, struct curl_sockaddr* address) {
    return static_cast<Transfer*>(self)->Socket(*address);
  }

  // Returns how many bytes it took; fewer than all end the transfer.
  size_t Body(std::string_view data) {
    if (request.on_body && status() == 200) {
      *client->bytes_ += std::ssize(data);
      if (request.on_body(data)) return data.size();
      stopped = "cancelled";
      return 0;
    }
    const size_t room = request.most_bytes - reply->body.size();
    const size_t taken = std::min(room, data.size());
    reply->body.append(data.substr(0, taken));
    *client->bytes_ += static_cast<int64_t>(taken);
    reply->too_long = taken < data.size();
    return taken;
  }

  int status() const {
    long status = 0;
    curl_easy_getinfo(client->curl_, CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }

  void Header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // also after an interim answer, whose headers do not count
      for (const HeaderField& field : kFields) (reply->*field.to).clear();
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.size() > kLongestHeader) return;
    const std::string name = absl::AsciiStrToLower({line.data(), colon});
    for (const HeaderField& field : kFields) {
      if (name != field.name) continue;
      const std::string_view value = line.substr(colon + 1);
      reply->*field.to = std::string(absl::StripAsciiWhitespace({value.data(), value.size()}));
    }
  }

  bool Stop(int64_t now) {
    const absl::Duration time = RealClock().Monotonic();
    if (now != moved) last_byte = time;
    moved = now;
    if (*client->cancelled_) {
      stopped = "cancelled";
      // Otherwise libcurl waits for the name servers, up to 30 s.
      curl_easy_setopt(client->curl_, CURLOPT_QUICK_EXIT, 1L);
    }
    if (time - last_byte > request.stall) {
      stopped = absl::StrCat("no byte for ", absl::FormatDuration(request.stall));
    }
    return !stopped.empty();
  }

  curl_socket_t Socket(const curl_sockaddr& address) {
    if (!request.any_address && !IsPublicAddress(address.addr)) {
      reply->refused_address = true;
      return CURL_SOCKET_BAD;
    }
    return socket(address.family, address.socktype | SOCK_CLOEXEC, address.protocol);
  }
};

HttpClient::HttpClient(const std::atomic<bool>* cancelled, std::atomic<int64_t>* bytes)
    : cancelled_(cancelled), bytes_(bytes), curl_(NewHandle()) {}

HttpClient::~HttpClient() { curl_easy_cleanup(curl_); }

// A kept connection is not opened again, so its address would not be looked at again.
void HttpClient::DropOtherConnections(bool any_address) {
  if (any_address == any_address_) return;
  any_address_ = any_address;
  curl_easy_cleanup(curl_);
  curl_ = NewHandle();
}

void HttpClient::SetCallbacks(Transfer* transfer) {
  const auto set = [this](CURLoption option, auto value) {
    curl_easy_setopt(curl_, option, value);
  };
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Transfer::OnProgress);
  set(CURLOPT_XFERINFODATA, transfer);
  set(CURLOPT_OPENSOCKETFUNCTION, &Transfer::OnSocket);
  set(CURLOPT_OPENSOCKETDATA, transfer);
  set(CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
  set(CURLOPT_HEADERDATA, transfer);
  set(CURLOPT_WRITEFUNCTION, &Transfer::OnBody);
  set(CURLOPT_WRITEDATA, transfer);
}

void HttpClient::SetOptions(const HttpRequest& request) {
  const auto set = [this](CURLoption option, auto value) {
    curl_easy_setopt(curl_, option, value);
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_USERAGENT, absl::StrCat("nsa/", kVersion).c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(request.stall)));
  if (request.total < absl::InfiniteDuration()) {
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(request.total)));
  }
  if (!request.range.empty()) set(CURLOPT_RANGE, request.range.c_str());
  if (!request.proxy) set(CURLOPT_PROXY, "");
  const char* const file = std::getenv("SSL_CERT_FILE");
  if (file != nullptr && *file != '\0') set(CURLOPT_CAINFO, file);
}

void HttpClient::SetBody(std::string_view body) {
  curl_easy_setopt(curl_, CURLOPT_POST, 1L);
  // Not copied. Without a pointer libcurl would read standard input.
  curl_easy_setopt(curl_, CURLOPT_POSTFIELDS, body.empty() ? "" : body.data());
  curl_easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
}

void HttpClient::Sign(const HttpSignature& signature) {
  curl_easy_setopt(curl_, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);  // instead of "Expect:"
  curl_easy_setopt(curl_, CURLOPT_AWS_SIGV4, ("aws:amz:" + signature.region + ":s3").c_str());
  curl_easy_setopt(curl_, CURLOPT_USERNAME, signature.key_id.c_str());
  curl_easy_setopt(curl_, CURLOPT_PASSWORD, signature.secret.c_str());
}

HttpReply HttpClient::Get(const HttpRequest& request) { return Perform(request, "GET", nullptr); }

HttpReply HttpClient::Post(const HttpRequest& request, std::string_view body) {
  return Perform(request, "POST", &body);
}

HttpReply HttpClient::Put(const HttpRequest& request, std::string_view body) {
  return Perform(request, "PUT", &body);
}

HttpReply HttpClient::Delete(const HttpRequest& request) {
  return Perform(request, "DELETE", nullptr);
}

HttpReply HttpClient::Perform(const HttpRequest& request, const char* method,
                              const std::string_view* body) {
  HttpReply reply;
  DropOtherConnections(request.any_address);
  if (curl_ == nullptr) {
    reply.fault = "libcurl cannot be set up";
    return reply;
  }
  Transfer transfer{.client = this, .request = request, .reply = &reply};
  curl_easy_reset(curl_);
  SetOptions(request);
  SetCallbacks(&transfer);
  if (body != nullptr) SetBody(*body);
  if (std::string_view(method) == "POST") {
    curl_easy_setopt(curl_, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(curl_, CURLOPT_FORBID_REUSE, 1L);
  } else if (std::string_view(method) != "GET") {
    curl_easy_setopt(curl_, CURLOPT_CUSTOMREQUEST, method);
  }
  if (request.signature) Sign(*request.signature);
  char text[CURL_ERROR_SIZE] = {};
  curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, text);
  curl_slist* const headers = HeadersOf(request, body != nullptr);
  curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl_easy_perform(curl_);
  curl_slist_free_all(headers);
  reply.status = transfer.status();
  // A host may have several addresses, and another one was fine.
  reply.refused_address = reply.refused_address && code != CURLE_OK;
  reply.unknown_host = code == CURLE_COULDNT_RESOLVE_HOST;
  reply.untrusted = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
  if (!transfer.stopped.empty()) {
    reply.fault = transfer.stopped;
  } else if (code != CURLE_OK && !reply.too_long) {
    reply.fault = text[0] != '\0' ? text : curl_easy_strerror(code);
  }
  const bool unreachable = reply.status == 0 && !reply.refused_address && !reply.untrusted;
  if (unreachable && !reply.fault.empty()) reply.fault += UnusedProxy(request);
  return reply;
}

absl::StatusOr<std::string> ResolveReference(const std::string& base,
                                             const std::string& reference) {
  CURLU* const url = curl_url();
  char* text = nullptr;
  const bool valid = curl_url_set(url, CURLUPART_URL, base.c_str(), 0) == CURLUE_OK &&
                     curl_url_set(url, CURLUPART_URL, reference.c_str(), 0) == CURLUE_OK &&
                     curl_url_get(url, CURLUPART_URL, &text, 0) == CURLUE_OK;
  std::string result = valid ? text : "";
  curl_free(text);
  curl_url_cleanup(url);
  if (valid) return result;
  return absl::InvalidArgumentError("a reference that is no URL");
}

std::string EncodePath(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || absl::StrContains("-._~/", absl::string_view(&c, 1))) {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

}  // namespace nsa
