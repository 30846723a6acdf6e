#include "worker/train/data/cache/cache_options.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/environment.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr int64_t kMostCacheBytes = int64_t{1} << 50;

std::filesystem::path Folder() {
  if (const std::string given = Environment("NSA_DATA_CACHE_DIR"); !given.empty()) return given;
  const std::string cache = Environment("XDG_CACHE_HOME");
  if (!cache.empty()) return std::filesystem::path(cache) / "nsa" / "data";
  const std::string home = Environment("HOME");
  if (home.empty()) return {};
  return std::filesystem::path(home) / ".cache" / "nsa" / "data";
}

}  // namespace

absl::StatusOr<CacheOptions> CacheFromEnvironment() {
  CacheOptions options;
  options.folder = Folder();
  const std::string text = Environment("NSA_DATA_CACHE_BYTES");
  const bool valid =
      text.empty() || (absl::SimpleAtoi(text, &options.most_bytes) && options.most_bytes >= 0 &&
                       options.most_bytes <= kMostCacheBytes);
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat("NSA_DATA_CACHE_BYTES: '", text, "' (0 to ",
                                                   kMostCacheBytes,
                                                   "); set it to a number of bytes"));
  }
  if (options.most_bytes == 0) options.folder.clear();
  return options;
}

absl::StatusOr<TokenCacheOptions> TokenCacheFromEnvironment() {
  TokenCacheOptions options;
  NSA_ASSIGN_OR_RETURN(options.cache, CacheFromEnvironment());
  return options;
}

}  // namespace nsa::train
