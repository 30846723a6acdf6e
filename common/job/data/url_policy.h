// Which URLs the data of a job may come from: the coordinator's allowed_urls.
//
// An entry is the beginning of a URL. `https://`, `http://` and `hf://` allow every URL of that
// scheme at public addresses. An entry that names a host allows it at any address, so also at a
// loopback, private or link-local one: its author knows the host. `s3://` allows every bucket and
// `s3://BUCKET/` one; neither is allowed by default, because requests to them are signed. `*`
// allows every URL at any address; `none` allows nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/url.h"

namespace nsa {

// Immutable.
class UrlPolicy {
 public:
  // Allows nothing.
  UrlPolicy() = default;

  // InvalidArgument, naming the entry, for one that is not the beginning of a URL.
  static absl::StatusOr<UrlPolicy> Make(const std::vector<std::string>& allowed);

  // Whether a job may name this URL.
  bool Allows(std::string_view url) const;

  // Whether an entry names the host of `url`.
  bool AllowsAnyAddress(const Url& url) const;

  // Every URL at any address.
  bool everything() const { return everything_; }

 private:
  bool everything_ = false;
  std::vector<std::string> schemes_;  // "https"
  std::vector<Url> beginnings_;
  std::vector<std::string> places_;  // "hf://datasets/HuggingFaceFW/", "s3://bucket/"
};

// The coordinator's default.
std::vector<std::string> DefaultAllowedUrls();

}  // namespace nsa
