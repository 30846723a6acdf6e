// How data is read from URLs: limits, times, and what the environment says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/job/data/large_data.h"
#include "common/job/data/url.h"
#include "common/job/data/url_policy.h"
#include "common/s3/access.h"

namespace nsa::train {

inline constexpr std::string_view kHubEndpoint = "https://huggingface.co";

struct RemoteOptions {
  UrlPolicy policy;
  // Of the Hub. Requests for hf:// go there; the token is sent nowhere else.
  std::string endpoint = std::string(kHubEndpoint);
  std::string token;
  std::string token_from = "HF_TOKEN";  // the variable or the file that has it, for messages
  // Credentials and endpoint for s3://, or why there are none.
  absl::StatusOr<S3Access> s3 = S3Access();
  // Whether hf:// URLs may be those of models too.
  bool models = false;
  // The commits at which branches are read. One that is missing here is asked for once.
  HubCommits hub_commits;
  // Longest time without progress, after which reading fails; and of one attempt.
  absl::Duration patience = absl::Seconds(48);
  absl::Duration stall = absl::Seconds(12);
  // Pause after the first failed attempt; each further one is twice as long, up to the longest, and
  // each a random part of that.
  absl::Duration first_pause = absl::Milliseconds(200);
  absl::Duration longest_pause = absl::Seconds(10);
  int64_t block_bytes = 4 << 20;  // of one request
  int blocks_ahead = 3;           // requested before they are needed
  std::filesystem::path cache;    // empty: nothing is kept
  int64_t cache_bytes = kDataCacheBytes;
};

// For a job whose loader waits for `timeout`. From the environment: HF_TOKEN, HF_ENDPOINT, and the
// variables of CacheFromEnvironment() and S3AccessFromEnvironment(). Without HF_TOKEN the token is
// that of `hf auth login`, where that program finds it: in the file HF_TOKEN_PATH, else
// HF_HOME/token, else huggingface/token in XDG_CACHE_HOME or ~/.cache. An agent sets HF_TOKEN_PATH
// to nothing for its ranks, so that they read no file. InvalidArgument, naming the variable, the
// file or the entry of `allowed_urls`; the token is never in a message.
absl::StatusOr<RemoteOptions> RemoteOptionsFor(const std::vector<std::string>& allowed_urls,
                                               absl::Duration timeout);

}  // namespace nsa::train
