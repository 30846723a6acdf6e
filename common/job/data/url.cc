#include "common/job/data/url.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"

namespace nsa {
namespace {

constexpr size_t kLongestShown = 200;
constexpr size_t kLongestUrl = 4'000;
constexpr size_t kCommitDigits = 40;
constexpr size_t kShortestBucket = 3;
constexpr size_t kLongestBucket = 63;
constexpr size_t kLongestKey = 1'024;  // of S3
constexpr std::string_view kHubForm = "hf://datasets/OWNER/NAME[@REVISION]/PATH";
constexpr std::string_view kHubModelForm = "hf://OWNER/NAME[@REVISION]";
constexpr std::string_view kHubRefs[] = {"convert", "pr", "heads", "tags"};
constexpr std::string_view kRevisionMarks = "-_.~%";  // and letters and digits

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Refuse(std::string_view url, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(CleanLine(CutText(url, kLongestShown)), ": ", View(why)));
}

bool IsPlain(unsigned char c) { return c > 0x20 && c < 0x7f && c != '\\' && c != '"' && c != '<'; }

// Whether a segment of the path is `.` or `..`, also percent-encoded.
bool HasDots(std::string_view path) {
  const std::string plain =
      absl::StrReplaceAll(absl::AsciiStrToLower(View(path)), {{"%2e", "."}, {"%2f", "/"}});
  const std::vector<absl::string_view> parts = absl::StrSplit(plain, '/');
  return std::ranges::any_of(parts,
                             [](absl::string_view part) { return part == "." || part == ".."; });
}

// Divides HOST[:PORT]; false if the port is invalid.
bool SplitAuthority(std::string_view authority, Url* url) {
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  url->host = absl::AsciiStrToLower(View(authority.substr(0, colon)));
  url->port = url->scheme == "https" ? 443 : 80;
  if (colon == std::string_view::npos) return true;
  return absl::SimpleAtoi(View(authority.substr(colon + 1)), &url->port) && url->port > 0 &&
         url->port < 65536;
}

bool IsName(std::string_view text, std::string_view more) {
  return !text.empty() && text.front() != '.' && std::ranges::all_of(text, [&](unsigned char c) {
    return absl::ascii_isalnum(c) || more.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// Moves the two further parts of a revision refs/…/… from the path into the revision.
bool TakeReference(HubPath* hub) {
  const std::vector<std::string> ref = absl::StrSplit(hub->path, absl::MaxSplits('/', 2));
  if (std::ranges::count(kHubRefs, ref[0]) == 0 || ref.size() < 2 ||
      !IsName(ref[1], kRevisionMarks)) {
    return false;
  }
  hub->revision = absl::StrCat("refs%2F", ref[0], "%2F", ref[1]);
  hub->path = ref.size() < 3 ? "" : ref[2];
  return !hub->path.starts_with('/');
}

// A URL that goes on as OWNER/NAME[@REVISION][/PATH] after `begin`.
absl::StatusOr<HubPath> ParseHub(std::string_view text, std::string_view begin, bool model) {
  const absl::Status wrong =
      Refuse(text, absl::StrCat("is not of the form ", View(model ? kHubModelForm : kHubForm)));
  if (!text.starts_with(begin)) return wrong;
  const std::vector<std::string> parts =
      absl::StrSplit(View(text.substr(begin.size())), absl::MaxSplits('/', 2));
  if (parts.size() < 2) return wrong;
  const std::pair<std::string, std::string> name =
      absl::StrSplit(parts[1], absl::MaxSplits('@', 1));
  const bool named = parts[1].find('@') != std::string::npos;
  HubPath hub = {.repository = absl::StrCat(parts[0], "/", name.first),
                 .revision = named ? name.second : "main",
                 .path = parts.size() < 3 ? "" : parts[2],
                 .model = model};
  if (!IsName(parts[0], "-_.") || !IsName(name.first, "-_.") ||
      !IsName(hub.revision, kRevisionMarks) || hub.path.starts_with('/') ||
      (hub.path.empty() && !model)) {
    return wrong;
  }
  if (hub.revision == "refs" && (!TakeReference(&hub) || (hub.path.empty() && !model))) {
    return Refuse(text, absl::StrCat("the revision begins with refs/ (refs/convert/NAME, "
                                     "refs/pr/NUMBER, refs/heads/NAME or refs/tags/NAME",
                                     model ? "" : ", and a path behind it",
                                     "); correct it, or write further slashes of the revision as "
                                     "%2F"));
  }
  if (HasDots(hub.revision) || HasDots(hub.path)) {
    return Refuse(text, "has . or .. in its path (neither is allowed); write the path without it");
  }
  return hub;
}

}  // namespace

std::string_view WithoutQuery(std::string_view path) {
  const bool query = IsUrl(path) && !IsHubUrl(path) && !IsS3Url(path);
  return query ? path.substr(0, path.find('?')) : path;
}

std::string Url::origin() const { return absl::StrCat(scheme, "://", host, ":", port); }

absl::StatusOr<Url> ParseUrl(std::string_view text) {
  if (!std::ranges::all_of(text, [](unsigned char c) { return IsPlain(c); })) {
    return Refuse(text,
                  "has a character that URLs have not; percent-encode it, e.g. a blank as %20");
  }
  Url url;
  const size_t end = text.find("://");
  url.scheme = absl::AsciiStrToLower(View(text.substr(0, end)));
  if (end == std::string_view::npos || (url.scheme != "http" && url.scheme != "https")) {
    return Refuse(text,
                  "is neither a path nor a URL that is read (https://, http://, hf:// or s3://)");
  }
  const std::string_view rest = text.substr(end + 3);
  const size_t slash = std::min(rest.find_first_of("/?#"), rest.size());
  const std::string_view authority = rest.substr(0, slash);
  if (authority.find('@') != std::string_view::npos) {
    // Only the part before the name is shown: the rest may hold a password.
    return Refuse(
        text.substr(0, end + 3),
        "a URL with a user name or a password (neither is allowed, because URLs are shown "
        "to others); remove it");
  }
  if (!SplitAuthority(authority, &url) || url.host.empty()) {
    return Refuse(text, "has no valid host and port; write https://HOST/PATH");
  }
  url.target = std::string(rest.substr(slash));
  if (url.target.empty() || url.target.front() != '/') url.target.insert(0, "/");
  if (url.target.find('#') != std::string::npos) {
    return Refuse(text, "has a fragment (#…), which no server sees; remove it");
  }
  if (HasDots(WithoutQuery(text).substr(end + 3))) {
    return Refuse(text, "has . or .. in its path (neither is allowed); write the path without it");
  }
  return url;
}

bool IsHubCommit(std::string_view revision) {
  return revision.size() == kCommitDigits &&
         std::ranges::all_of(revision, [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

absl::StatusOr<HubPath> ParseHubUrl(std::string_view text) {
  return ParseHub(text, "hf://datasets/", /*model=*/false);
}

absl::StatusOr<HubPath> ParseHubModelUrl(std::string_view text) {
  if (!IsHubModelUrl(text)) {
    return Refuse(text, absl::StrCat("is not of the form ", View(kHubModelForm)));
  }
  return ParseHub(text, "hf://", /*model=*/true);
}

absl::Status CheckHubModel(std::string_view url) {
  NSA_ASSIGN_OR_RETURN(const HubPath hub, ParseHubModelUrl(url));
  if (hub.path.empty()) return absl::OkStatus();
  return Refuse(url, absl::StrCat("names a file or a folder (only a whole model, ",
                                  View(kHubModelForm), "); leave it out"));
}

absl::StatusOr<S3Path> ParseS3Url(std::string_view text, bool folder) {
  if (!IsS3Url(text)) return Refuse(text, "is not of the form s3://BUCKET/KEY");
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(View(text.substr(std::string_view("s3://").size())), absl::MaxSplits('/', 1));
  S3Path path = {.bucket = parts.first, .key = parts.second};
  if (folder && path.key.ends_with("/")) path.key.pop_back();
  if (path.bucket.find('@') != std::string::npos) {
    return Refuse("s3://",
                  "a URL with a key or a password (neither is allowed, because URLs are "
                  "shown to others); remove it");
  }
  const bool named = path.bucket.size() >= kShortestBucket &&
                     path.bucket.size() <= kLongestBucket && path.bucket.back() != '.' &&
                     path.bucket.find("..") == std::string::npos && IsName(path.bucket, "-.") &&
                     path.bucket == absl::AsciiStrToLower(path.bucket);
  if (!named) {
    return Refuse(text,
                  "has no bucket that can exist (3 to 63 of a-z, 0-9, dots and hyphens); "
                  "write s3://BUCKET/KEY");
  }
  if (path.key.empty()) return Refuse(text, "has no key; write s3://BUCKET/KEY");
  if (path.key.size() > kLongestKey) {
    return Refuse(text, absl::StrCat(path.key.size(), " bytes of key (at most ", kLongestKey,
                                     "); use a shorter one"));
  }
  const std::vector<absl::string_view> segments = absl::StrSplit(path.key, '/');
  const bool clean = std::ranges::all_of(segments, [](absl::string_view segment) {
    return !segment.empty() && segment != "." && segment != "..";
  });
  const bool plain =
      std::ranges::all_of(path.key, [](unsigned char c) { return !absl::ascii_iscntrl(c); });
  if (clean && plain) return path;
  return Refuse(text,
                "has an empty segment, . or .., or a control character in its key (none is "
                "allowed); correct it");
}

absl::Status CheckDataUrl(std::string_view url) {
  if (url.size() > kLongestUrl) {
    return Refuse(
        url, absl::StrCat(url.size(), " bytes (at most ", kLongestUrl, "); use a shorter URL"));
  }
  if (IsHubUrl(url)) {
    NSA_ASSIGN_OR_RETURN(const HubPath hub, ParseHubUrl(url));
    const size_t slash = hub.path.rfind('/');
    // Brackets are literal: a folder's name may have them.
    if (slash == std::string::npos || hub.path.find_first_of("*?") > slash) return absl::OkStatus();
    return Refuse(url,
                  "a wildcard in a folder's name (only in the name of a file); list the folders");
  }
  NSA_RETURN_IF_ERROR(IsS3Url(url) ? ParseS3Url(url).status() : ParseUrl(url).status());
  const std::string_view path = WithoutQuery(url).substr(url.find("://") + 3);
  if (path.find('*') == std::string_view::npos) return absl::OkStatus();
  return Refuse(url, "a pattern (only hf:// can list files); name each file");
}

}  // namespace nsa
