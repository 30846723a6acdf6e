#include "worker/train/data/remote/options.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/environment.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "worker/train/data/cache/cache_options.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

// Where `hf auth login` keeps its token; empty: nowhere.
std::filesystem::path TokenFile() {
  if (std::getenv("HF_TOKEN_PATH") != nullptr) return Environment("HF_TOKEN_PATH");
  if (const std::string home = Environment("HF_HOME"); !home.empty())
    return fs::path(home) / "token";
  if (const std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface" / "token";
  }
  const std::string home = Environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "huggingface" / "token";
}

// A token that has a line feed in it would add headers to the request.
absl::Status SetToken(RemoteOptions* options) {
  options->token = Environment("HF_TOKEN");
  const fs::path file = options->token.empty() ? TokenFile() : "";
  if (!file.empty()) {
    // What cannot be read is no token: most data sets need none.
    const std::string content = ReadWholeFile(file).value_or("");
    options->token = std::string(absl::StripAsciiWhitespace(content));
    if (!options->token.empty()) options->token_from = file.string();
  }
  const bool plain =
      std::ranges::all_of(options->token, [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      options->token_from, ": has characters that no token has (its value is not shown); ",
      file.empty() ? "set it again" : "run hf auth login again"));
}

bool IsLoopback(const Url& url) {
  return url.host == "localhost" || url.host == "[::1]" || url.host == "127.0.0.1";
}

absl::Status SetEndpoint(RemoteOptions* options) {
  std::string text = Environment("HF_ENDPOINT");
  if (text.empty()) return absl::OkStatus();
  while (text.ends_with("/")) text.pop_back();
  NSA_ASSIGN_OR_RETURN(const Url url, ParseUrl(text));
  if (!options->token.empty() && url.scheme != "https" && !IsLoopback(url)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "HF_ENDPOINT: ", text, " (https, when there is a token in ", options->token_from,
        "): the token would travel unencrypted; use https://",
        options->token_from == "HF_TOKEN" ? "" : ", or set HF_TOKEN_PATH to nothing: no token"));
  }
  options->endpoint = text;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RemoteOptions> RemoteOptionsFor(const std::vector<std::string>& allowed_urls,
                                               absl::Duration timeout) {
  RemoteOptions options;
  NSA_ASSIGN_OR_RETURN(options.policy, UrlPolicy::Make(allowed_urls));
  // Less than the loader waits, so that its own message, which names the URL, comes first.
  options.patience = 0.8 * timeout;
  options.stall = std::clamp(options.patience / 4, absl::Milliseconds(500), absl::Seconds(20));
  NSA_ASSIGN_OR_RETURN(const CacheOptions cache, CacheFromEnvironment());
  options.cache = cache.folder;
  options.cache_bytes = cache.most_bytes;
  NSA_RETURN_IF_ERROR(SetToken(&options));
  NSA_RETURN_IF_ERROR(SetEndpoint(&options));
  options.s3 = S3AccessFromEnvironment();
  return options;
}

}  // namespace nsa::train
