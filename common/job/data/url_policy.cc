#include "common/job/data/url_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa {
namespace {

bool Begins(const Url& url, const Url& beginning) {
  return url.origin() == beginning.origin() && url.target.starts_with(beginning.target);
}

}  // namespace

std::vector<std::string> DefaultAllowedUrls() { return {"https://", "hf://"}; }

absl::StatusOr<UrlPolicy> UrlPolicy::Make(const std::vector<std::string>& allowed) {
  UrlPolicy policy;
  for (const std::string& entry : allowed) {
    if (entry == "none" && allowed.size() == 1) continue;
    if (entry == "*") {
      policy.everything_ = true;
    } else if (entry == "https://" || entry == "http://") {
      policy.schemes_.push_back(entry.substr(0, entry.size() - 3));
    } else if ((IsHubUrl(entry) || IsS3Url(entry)) && entry.ends_with("/")) {
      policy.places_.push_back(entry);
    } else {
      absl::StatusOr<Url> url = ParseUrl(entry);
      if (!url.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "allowed_urls: '", entry,
            "' (https://, http://, hf:// or s3://, also followed by a host or bucket and a path, "
            "hf:// and s3:// with a slash at the end; * or none); write the beginning of the URLs "
            "that jobs may read"));
      }
      policy.beginnings_.push_back(*std::move(url));
    }
  }
  return policy;
}

bool UrlPolicy::Allows(std::string_view text) const {
  if (everything_) return true;
  if (IsHubUrl(text) || IsS3Url(text)) {
    return std::ranges::any_of(
        places_, [&](const std::string& beginning) { return text.starts_with(beginning); });
  }
  const absl::StatusOr<Url> url = ParseUrl(text);
  return url.ok() && (std::ranges::count(schemes_, url->scheme) > 0 || AllowsAnyAddress(*url));
}

bool UrlPolicy::AllowsAnyAddress(const Url& url) const {
  return everything_ || std::ranges::any_of(beginnings_, [&](const Url& beginning) {
           return Begins(url, beginning);
         });
}

}  // namespace nsa
