// URLs that a job may name in place of local data files:
//   https://HOST[:PORT]/PATH[?QUERY]  and http://…
//   hf://datasets/OWNER/NAME[@REVISION]/PATH    a file or pattern of a data set on the Hugging Face
//                                               Hub; the revision is a branch, tag or commit, main
//                                               without one. A slash in it is %2F, but in
//                                               refs/convert/NAME, refs/pr/NUMBER, refs/heads/NAME
//                                               and refs/tags/NAME
//   s3://BUCKET/KEY                             an object of an object store (common/s3/access.h)
// A model to import, which is no data, is hf://OWNER/NAME[@REVISION].
// Pure: nothing here opens a connection.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

// Whether a path is a URL, of whatever scheme.
inline bool IsUrl(std::string_view path) { return path.find("://") != std::string_view::npos; }

inline bool IsHubUrl(std::string_view path) { return path.starts_with("hf://"); }

// Whether a URL of the Hub names a model, or a file of one, and no data set.
inline bool IsHubModelUrl(std::string_view path) {
  return IsHubUrl(path) && !path.starts_with("hf://datasets/");
}

inline bool IsS3Url(std::string_view path) { return path.starts_with("s3://"); }

// The part of a path that has the file's name and its ending: an http URL without its query.
std::string_view WithoutQuery(std::string_view path);

// An http or https URL.
struct Url {
  std::string scheme;  // http or https
  std::string host;    // lower case; an IPv6 address in brackets
  int32_t port = 0;
  std::string target;  // path and query, beginning with a slash

  // What credentials belong to: "https://example.com:443".
  std::string origin() const;
};

// InvalidArgument, naming the URL and the reason: another scheme, no host, a user name, a fragment,
// a segment `.` or `..`, or a character that must be percent-encoded.
absl::StatusOr<Url> ParseUrl(std::string_view url);

bool IsHubCommit(std::string_view revision);

// The commits of branches and tags of the Hub, by HubPath::key().
using HubCommits = std::map<std::string, std::string>;

// A file or pattern on the Hub.
struct HubPath {
  std::string repository;  // OWNER/NAME
  std::string revision;    // percent-encoded as it was written, slashes too: refs%2Fpr%2F7
  std::string path;        // as it was written, without a leading slash; empty: all of a model
  bool model = false;      // else a data set

  // Whether the revision is a commit, 40 hexadecimal digits: what it names never changes.
  bool pinned() const { return IsHubCommit(revision); }
  // What a commit is kept under: OWNER/NAME@REVISION, of a model models/OWNER/NAME@REVISION.
  std::string key() const { return (model ? "models/" : "") + repository + "@" + revision; }
};

// Of a data set. InvalidArgument, naming the URL and its form.
absl::StatusOr<HubPath> ParseHubUrl(std::string_view url);

// Of a model, hf://OWNER/NAME[@REVISION], or of one of its files, the same with /PATH.
absl::StatusOr<HubPath> ParseHubModelUrl(std::string_view url);

// OK if the URL is that of a whole model. InvalidArgument, naming the URL and the form.
absl::Status CheckHubModel(std::string_view url);

// An object of an object store, or a folder of them.
struct S3Path {
  std::string bucket;
  std::string key;  // as it was written, without a leading slash: nothing is decoded
};

// InvalidArgument, naming the URL and the reason: no bucket, a bucket's name that none can have
// (3 to 63 of a-z, 0-9, dots and hyphens), no key, empty segments or `.` or `..`, or a control
// character. A slash at the end is left out if `folder`, and is an error otherwise.
absl::StatusOr<S3Path> ParseS3Url(std::string_view url, bool folder = false);

// OK if the URL can be read as data. InvalidArgument `URL: what (limit); what to do`.
absl::Status CheckDataUrl(std::string_view url);

}  // namespace nsa
