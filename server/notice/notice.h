// A receiver of events of jobs: an entry of `notices` in coordinator.yaml, checked and
// with its files read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/url_policy.h"
#include "nsa/v1/config.pb.h"
#include "server/notice/rule.h"

namespace nsa::server {

enum class NoticeForm {
  kJson,   // a webhook that gets one JSON object for each event
  kSlack,  // a webhook that gets {"text": …}
  kMail,
};

struct Notice {
  std::string name;
  NoticeRule rule;
  NoticeForm form = NoticeForm::kJson;
  // Where it goes, for logs: "webhook https://hooks.slack.com:443" or "e-mail to 2 addresses".
  std::string place;
  // Of a webhook. The URL and the key are secrets: neither is ever logged or shown.
  std::string url;
  std::string key;           // of the signature; empty: none
  bool any_address = false;  // allowed_urls names its host: also at an address that is not public
  bool proxy = false;        // allowed_urls is `*`: the proxy that the environment names is used
  // Of e-mail.
  std::vector<std::string> addresses;
};

struct NoticeOptions {
  std::vector<Notice> notices;
  std::filesystem::path sendmail;
  std::string page_url;  // ends with a slash; empty: not configured
};

inline constexpr int kMostNotices = 32;
inline constexpr int kMostAddresses = 32;  // of one notice

// InvalidArgument, NotFound or PermissionDenied: `notices[1] (NAME): field: value (limit); what to
// do`. No message shows a URL beyond its host. Reads the files of URLs and keys.
absl::StatusOr<NoticeOptions> ResolveNotices(const v1::CoordinatorConfig& config,
                                             const UrlPolicy& policy);

}  // namespace nsa::server
