#include "worker/train/serve/access.h"

#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "worker/train/serve/answer.h"

namespace nsa::train::serve {
namespace {

constexpr size_t kShownBytes = 64;
constexpr int kMostPort = 65'535;

// Splits "host:port"; false when the port is none.
bool Split(std::string_view address, std::string_view* host, int* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return false;
  *host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  if (digits.empty() || digits.size() > 5) return false;
  *port = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return false;
    *port = *port * 10 + (c - '0');
  }
  return *port <= kMostPort;
}

bool IsLocal(std::string_view host) {
  return host == "127.0.0.1" ||
         absl::EqualsIgnoreCase(absl::string_view(host.data(), host.size()), "localhost");
}

}  // namespace

absl::StatusOr<Listen> ReadListen(std::string_view address) {
  std::string_view host;
  int port = 0;
  const std::string shown = CleanLine(CutText(address, kShownBytes));
  if (!Split(address, &host, &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen: '", shown, "' (HOST:PORT, with a port from 0 to ", kMostPort,
                     "; 0 takes a free one); take 127.0.0.1:8000"));
  }
  if (host == "[::1]") {
    return absl::InvalidArgumentError(absl::StrCat(
        "listen: '", shown, "' (127.0.0.1 or localhost, by IPv4 only); take 127.0.0.1:", port));
  }
  if (!IsLocal(host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listen: '", shown, "' (127.0.0.1 or localhost): the server asks nobody for a ",
        "password, so only programs of this machine may reach it; from another machine use an ",
        "SSH tunnel"));
  }
  return Listen{.port = port};
}

absl::Status CheckOrigins(const Origins& origins) {
  std::string_view host;
  int port = 0;
  const std::string_view given = origins.host == nullptr ? "" : origins.host;
  if (!Split(given, &host, &port)) host = given;
  if (!IsLocal(host) && host != "[::1]") {
    return HttpError(421, absl::StrCat("Host: '", CleanLine(CutText(given, kShownBytes)),
                                       "' (127.0.0.1, localhost or [::1], with any port); use "
                                       "one of these"));
  }
  const std::string_view site = origins.sec_fetch_site == nullptr ? "" : origins.sec_fetch_site;
  if (origins.origin == nullptr && (site.empty() || site == "none")) return absl::OkStatus();
  return HttpError(403,
                   "Origin: set (not allowed): pages of a browser may not use this server; send "
                   "the request from a program");
}

}  // namespace nsa::train::serve
