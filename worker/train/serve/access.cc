#include "worker/train/serve/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "worker/train/serve/answer.h"

namespace nsa::train::serve {
namespace {

constexpr size_t kShownBytes = 64;

bool IsLocal(const std::string& host) {
  return host == "127.0.0.1" || absl::EqualsIgnoreCase(host, "localhost");
}

}  // namespace

absl::StatusOr<Listen> ReadListen(const std::string& address) {
  NSA_ASSIGN_OR_RETURN(const HostPort at, ParseLoopback("listen", address));
  return Listen{.host = at.host, .port = std::stoi(at.port)};
}

absl::Status CheckOrigins(const Origins& origins) {
  const std::string given = origins.host == nullptr ? "" : origins.host;
  absl::StatusOr<HostPort> at = ParseHostPort("Host", given);
  if (!at.ok()) at = ParseHostPort("Host", given + ":0");
  if (!at.ok() || (!IsLocal(at->host) && at->host != "::1")) {
    return HttpError(421, absl::StrCat("Host: '", CleanLine(CutText(given, kShownBytes)),
                                       "' (127.0.0.1, localhost or [::1], with any port); use "
                                       "one of these"));
  }
  const std::string_view site = origins.sec_fetch_site == nullptr ? "" : origins.sec_fetch_site;
  const bool own_origin = origins.origin == nullptr ||
                          absl::EqualsIgnoreCase(origins.origin, absl::StrCat("http://", given));
  if (own_origin && (site.empty() || site == "none" || site == "same-origin")) {
    return absl::OkStatus();
  }
  return HttpError(403,
                   "Origin: another site (not allowed): no page but this server's own may use it; "
                   "send the request from a program");
}

}  // namespace nsa::train::serve
