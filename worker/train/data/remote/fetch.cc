#include "worker/train/data/remote/fetch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clean_text.h"
#include "common/base/clock.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/job/data/url.h"
#include "common/s3/fault.h"
#include "worker/train/data/remote/attempts.h"

namespace nsa::train {
namespace {

constexpr int kMostRedirects = 5;
// Addresses that a redirect of the Hub leads to are valid for longer.
constexpr absl::Duration kLandedFor = absl::Minutes(5);
// For a name without an address before anything was read: it is more likely mistyped than out of
// order.
constexpr absl::Duration kUnknownHostPatience = absl::Seconds(3);
constexpr size_t kFaultBytes = 4 << 10;  // of an object store's answer that says what is wrong

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Whether the same request may be answered otherwise later.
bool MaySucceedLater(int status) {
  return status == 0 || status == 408 || status == 425 || status == 429 || status >= 500;
}

std::string FaultOf(const HttpReply& reply) {
  const std::string status = absl::StrCat("HTTP ", reply.status);
  if (reply.status == 0) return reply.fault;
  return reply.fault.empty() ? status : absl::StrCat(status, ", ", reply.fault);
}

Outcome Again(const HttpReply& reply) {
  const bool asks = reply.status == 429 || reply.status == 503;
  return {Outcome::kAgain, FaultOf(reply), asks ? reply.retry_after : ""};
}

absl::Status UnknownHost(const std::string& name, const HttpReply& reply) {
  return WithReason(
      absl::DeadlineExceededError(absl::StrFormat(
          "%s: %s, for %s; correct the name of the host, or is this machine's name server down?",
          name, reply.fault, absl::FormatDuration(kUnknownHostPatience))),
      Reason::kDataStalled);
}

bool IsEncoded(const HttpReply& reply) {
  return !reply.content_encoding.empty() && reply.content_encoding != "identity";
}

Outcome Encoded(const HttpReply& reply) {
  return {Outcome::kWrong,
          absl::StrCat("answers with Content-Encoding ",
                       CleanLine(CutText(reply.content_encoding, 40)), ", which was not asked for"),
          ""};
}

// "bytes 0-1023/4096". Without a size, -1; "bytes */4096" has no range: begin and end are -1.
struct ContentRange {
  int64_t begin = -1;
  int64_t end = -1;  // behind the last byte
  int64_t size = -1;
};

std::optional<ContentRange> ParseContentRange(absl::string_view text) {
  ContentRange range;
  if (!absl::ConsumePrefix(&text, "bytes ")) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() != 2) return std::nullopt;
  if (parts[1] != "*" && !(absl::SimpleAtoi(parts[1], &range.size) && range.size >= 0)) {
    return std::nullopt;
  }
  if (parts[0] == "*") return range;
  const std::vector<std::string> ends = absl::StrSplit(parts[0], '-');
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &range.begin) ||
      !absl::SimpleAtoi(ends[1], &range.end) || range.begin < 0 || range.end < range.begin) {
    return std::nullopt;
  }
  ++range.end;
  return range;
}

// A weak ETag means the same bytes to us, since nothing is compressed on the way.
std::string_view Strong(std::string_view etag) {
  return etag.starts_with("W/") ? etag.substr(2) : etag;
}

// What shows that an answer is of another version; empty if nothing does.
std::string Difference(const FileVersion& version, const HttpReply& reply, int64_t size) {
  if (size >= 0 && size != version.size) {
    return absl::StrFormat("%d bytes were %d", size, version.size);
  }
  if (!version.etag.empty() && !reply.etag.empty()) {
    if (Strong(version.etag) == Strong(reply.etag)) return "";
    return absl::StrCat("ETag ", CleanLine(CutText(reply.etag, 80)), " was ",
                        CleanLine(CutText(version.etag, 80)));
  }
  if (version.last_modified.empty() || reply.last_modified.empty() ||
      version.last_modified == reply.last_modified) {
    return "";
  }
  return absl::StrCat("Last-Modified ", CleanLine(CutText(reply.last_modified, 80)), " was ",
                      CleanLine(CutText(version.last_modified, 80)));
}

absl::Status Changed(const std::string& name, const std::string& difference) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, ": changed while it was read (", difference,
      "); put the old file back, or start again with the new one in another train.out_dir"));
}

// The target of rel="next" in a Link header: `<https://…>; rel="next", <…>; rel="last"`.
std::string NextOf(absl::string_view link) {
  for (const absl::string_view part : absl::StrSplit(link, ',')) {
    if (!absl::StrContains(part, "rel=\"next\"")) continue;
    const size_t begin = part.find('<');
    const size_t end = part.find('>');
    if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin) continue;
    return std::string(part.substr(begin + 1, end - begin - 1));
  }
  return "";
}

}  // namespace

Fetcher::Fetcher(const RemoteOptions& options, std::string name, std::string url, Watch watch)
    : options_(options),
      name_(std::move(name)),
      url_(std::move(url)),
      watch_(std::move(watch)),
      client_(watch_.cancelled, watch_.bytes) {}

absl::StatusOr<HttpReply> Fetcher::Send(const std::string& range, size_t most) {
  const bool direct = !landed_.empty() && RealClock().Monotonic() < landed_until_;
  std::string url = direct ? landed_ : url_;
  for (int hop = 0;; ++hop) {
    NSA_ASSIGN_OR_RETURN(HttpReply reply, SendTo(url, range, most));
    if (IsRedirect(reply.status) && !IsS3Url(name_)) {
      if (hop == kMostRedirects) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s: more than %d redirects; name the place where they end", name_, kMostRedirects));
      }
      NSA_ASSIGN_OR_RETURN(url, Follow(url, reply));
      continue;
    }
    // Where the redirect led may be valid no longer.
    const bool gone = reply.status >= 400 && reply.status != 416 && !MaySucceedLater(reply.status);
    if (direct && hop == 0 && gone) {
      landed_.clear();
      return Send(range, most);
    }
    // The next attempt asks again where the file is.
    if (MaySucceedLater(reply.status)) {
      landed_.clear();
    } else if (hop > 0) {
      landed_ = url;
      landed_until_ = RealClock().Monotonic() + kLandedFor;
    }
    return reply;
  }
}

// One request, to where a redirect may have led.
absl::StatusOr<HttpReply> Fetcher::SendTo(const std::string& url, const std::string& range,
                                          size_t most) {
  absl::StatusOr<Url> parsed = ParseUrl(url);
  // A place that a redirect named may have a secret in it, so it is not shown.
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, ": redirects to what is no http or https URL; name the file itself"));
  }
  const bool hub = IsHubUrl(name_) && parsed->origin() == EndpointOrigin();
  const bool s3 = IsS3Url(name_);  // no redirect is followed, so this is the endpoint
  const std::string bearer = hub ? options_.token : "";
  // To an http proxy the token would travel unencrypted; to an https URL it travels in a tunnel.
  const bool hidden = bearer.empty() || parsed->scheme == "https";
  const HttpReply reply =
      client_.Get({.url = url,
                   .range = range,
                   .bearer = bearer,
                   .any_address = hub || s3 || options_.policy.AllowsAnyAddress(*parsed),
                   .proxy = options_.policy.everything() && hidden,
                   .most_bytes = s3 ? std::max(most, kFaultBytes) : most,
                   .stall = options_.stall,
                   .signature = s3 ? options_.s3->signature : std::nullopt});
  if (reply.untrusted) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: %s; if the authority is your own, name its certificates in SSL_CERT_FILE", name_,
        reply.fault));
  }
  if (!reply.refused_address) return reply;
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: %s is at an address that is not public (loopback, private or link-local); an operator "
      "can allow it by a URL with this host in the coordinator's allowed_urls",
      name_, parsed->host));
}

std::string Fetcher::EndpointOrigin() const {
  const absl::StatusOr<Url> endpoint = ParseUrl(options_.endpoint);
  return endpoint.ok() ? endpoint->origin() : "";
}

absl::StatusOr<std::string> Fetcher::Follow(const std::string& from, const HttpReply& reply) const {
  const absl::StatusOr<std::string> to = ResolveReference(from, reply.location);
  const absl::StatusOr<Url> url = to.ok() ? ParseUrl(*to) : to.status();
  if (reply.location.empty() || !url.ok()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: HTTP %d without a Location that can be followed; name the file itself",
                        name_, reply.status));
  }
  const bool downgraded = absl::StartsWith(from, "https:") && url->scheme == "http";
  if (!downgraded || options_.policy.AllowsAnyAddress(*url)) return *to;
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: redirects from https to http (host %s), where others can change what is read; name "
      "the file itself",
      name_, url->host));
}

// What to do about HTTP 401 and 403.
std::string Fetcher::HowToBeAllowed() const {
  if (!IsHubUrl(name_)) return "it must be readable without a login";
  const bool model = IsHubModelUrl(name_);
  if (!options_.token.empty()) {
    return absl::StrCat("the token in ", options_.token_from,
                        " must be valid and belong to somebody who may read this ",
                        model ? "model (who has accepted its terms, if it is gated)" : "data set");
  }
  if (model) {
    return "if the name is right and the model is private or gated, set HF_TOKEN, or log in by hf "
           "auth login";
  }
  return "if the data set is private or gated, set HF_TOKEN where the agent is started; nsactl and "
         "a worker that you start yourself also read the token of hf auth login";
}

// What to do about HTTP 404.
std::string Fetcher::HowToBeFound() const {
  if (!IsHubUrl(name_)) return "correct the URL";
  if (IsHubModelUrl(name_)) return "correct the name or the revision";
  return "correct the name or the revision, and name the files of a folder by a pattern, e.g. "
         "hf://datasets/OWNER/NAME/FOLDER/*.parquet";
}

// The error of a status that does not pass.
absl::Status Fetcher::Failed(const HttpReply& reply) const {
  if (IsS3Url(name_)) return S3Fault(name_, reply, *options_.s3);
  const std::string what = absl::StrCat(name_, ": HTTP ", reply.status);
  switch (reply.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(absl::StrCat(what, " (not allowed); ", HowToBeAllowed()));
    case 404:
    case 410:
      return absl::NotFoundError(absl::StrCat(what, " (not found); ", HowToBeFound()));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(what, "; is this the URL of a file that can be read?"));
  }
}

absl::StatusOr<Outcome> Fetcher::TakeLook(const HttpReply& reply, FileVersion* version) const {
  const std::optional<ContentRange> range = ParseContentRange(reply.content_range);
  *version = {.etag = reply.etag, .last_modified = reply.last_modified};
  if (reply.status == 416 && range && range->size == 0) return Outcome{};
  if (reply.status == 206 || reply.status == 200) {
    if (IsEncoded(reply)) return Encoded(reply);
    if (!reply.fault.empty()) return Again(reply);
  }
  if (reply.status == 206) {
    if (range && range->begin == 0 && range->size > 0) {
      version->size = range->size;
      return Outcome{};
    }
    return Outcome{Outcome::kWrong,
                   absl::StrFormat("Content-Range '%s' (bytes 0-0/SIZE was asked for)",
                                   CleanLine(CutText(reply.content_range, 80))),
                   ""};
  }
  if (reply.status == 200) {
    if (reply.too_long) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: the server ignores requests for a range (only for files of up to %d MiB); use a "
          "server that knows them, or copy the file",
          name_, options_.block_bytes >> 20));
    }
    version->ranges = false;
    version->content = reply.body;
    version->size = std::ssize(reply.body);
    return Outcome{};
  }
  if (MaySucceedLater(reply.status)) return Again(reply);
  return Failed(reply);
}

absl::StatusOr<FileVersion> Fetcher::Look() {
  Attempts attempts(options_, name_, watch_.sleep);
  const absl::Duration begin = RealClock().Monotonic();
  FileVersion version;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const HttpReply reply,
                         Send("0-0", static_cast<size_t>(options_.block_bytes)));
    NSA_ASSIGN_OR_RETURN(const Outcome outcome, TakeLook(reply, &version));
    if (outcome.kind == Outcome::kDone) return version;
    if (reply.unknown_host && RealClock().Monotonic() - begin >= kUnknownHostPatience) {
      return UnknownHost(name_, reply);
    }
    NSA_RETURN_IF_ERROR(attempts.Pause(outcome));
  }
}

// Appends what an answer has of the bytes [begin, end).
absl::StatusOr<Outcome> Fetcher::TakeRange(const HttpReply& reply, const FileVersion& version,
                                           int64_t begin, int64_t end, std::string* to) const {
  const std::optional<ContentRange> range = ParseContentRange(reply.content_range);
  if (reply.status == 416) {
    return Changed(name_,
                   absl::StrFormat("%d bytes were %d", range ? range->size : -1, version.size));
  }
  if (reply.status == 200) {
    return Outcome{Outcome::kWrong, "HTTP 200, the whole file, to a request for a range", ""};
  }
  if (MaySucceedLater(reply.status)) return Again(reply);
  if (reply.status != 206) return Failed(reply);
  if (IsEncoded(reply)) return Encoded(reply);
  if (!range || range->begin != begin || range->end > end) {
    return Outcome{Outcome::kWrong,
                   absl::StrFormat("Content-Range '%s' (bytes %d-%d were asked for)",
                                   CleanLine(CutText(reply.content_range, 80)), begin, end - 1),
                   ""};
  }
  if (const std::string difference = Difference(version, reply, range->size); !difference.empty()) {
    return Changed(name_, difference);
  }
  if (reply.too_long || std::ssize(reply.body) > range->end - begin) {
    return Outcome{Outcome::kWrong, "an answer with more bytes than it promises", ""};
  }
  to->append(reply.body);
  if (std::ssize(reply.body) == range->end - begin) return Outcome{};
  return Outcome{Outcome::kAgain,
                 absl::StrFormat("%d of %d bytes%s%s", reply.body.size(), range->end - begin,
                                 reply.fault.empty() ? "" : ", ", reply.fault),
                 ""};
}

absl::Status Fetcher::Read(const FileVersion& version, int64_t begin, int64_t end,
                           std::string* to) {
  if (!version.ranges) {
    to->append(version.content, static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    return absl::OkStatus();
  }
  Attempts attempts(options_, name_, watch_.sleep);
  while (begin < end) {
    NSA_ASSIGN_OR_RETURN(const HttpReply reply,
                         Send(absl::StrCat(begin, "-", end - 1), static_cast<size_t>(end - begin)));
    const size_t before = to->size();
    NSA_ASSIGN_OR_RETURN(const Outcome outcome, TakeRange(reply, version, begin, end, to));
    const auto arrived = static_cast<int64_t>(to->size() - before);
    if (arrived > 0) attempts.Progress();
    begin += arrived;
    if (outcome.kind != Outcome::kDone) NSA_RETURN_IF_ERROR(attempts.Pause(outcome));
  }
  return absl::OkStatus();
}

absl::StatusOr<Fetcher::Page> Fetcher::Get(size_t most) {
  Attempts attempts(options_, name_, watch_.sleep);
  const absl::Duration begin = RealClock().Monotonic();
  while (true) {
    NSA_ASSIGN_OR_RETURN(HttpReply reply, Send("", most));
    if (reply.unknown_host && RealClock().Monotonic() - begin >= kUnknownHostPatience) {
      return UnknownHost(name_, reply);
    }
    Outcome outcome = Again(reply);
    if (reply.status == 200 && reply.fault.empty()) {
      if (!reply.too_long) return Page{std::move(reply.body), NextOf(reply.link)};
      outcome = {Outcome::kWrong, absl::StrFormat("a list of more than %d bytes", most), ""};
    } else if (reply.status != 200 && !MaySucceedLater(reply.status)) {
      return Failed(reply);
    }
    NSA_RETURN_IF_ERROR(attempts.Pause(outcome));
  }
}

}  // namespace nsa::train
