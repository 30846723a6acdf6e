// Reads ranges of one file on a web server: follows redirects, repeats what may succeed later, and
// notices a file that changes.
//
// Repeated, with growing pauses: no connection, a connection that ends early or stalls, HTTP 408,
// 425, 429 and 5xx (Retry-After of 429 and 503 is obeyed), and a few times answers that are not
// what was asked for. Bytes that arrived are kept. What fails is an error once no byte arrived for
// RemoteOptions.patience. Not repeated: other statuses, e.g. 401 and 404.
//
// The token goes to the Hub's endpoint only, never to the host of a redirect. A redirect from https
// to http, to an address that is not public, or after five others is refused; of an s3:// URL,
// whose requests are signed, any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http.h"
#include "worker/train/data/remote/attempts.h"
#include "worker/train/data/remote/options.h"

namespace nsa::train {

// What a file was when it was first looked at.
struct FileVersion {
  int64_t size = 0;
  std::string etag;           // as the server writes it; empty: none
  std::string last_modified;  // the same
  // Whether the server answers requests for ranges. If not, `content` has the whole file.
  bool ranges = true;
  std::string content;
};

// Only one thread at a time may use a Fetcher.
class Fetcher {
 public:
  struct Watch {
    const std::atomic<bool>* cancelled;
    std::atomic<int64_t>* bytes;                // counts what arrives
    std::function<bool(absl::Duration)> sleep;  // false: do not go on
  };

  // `name` is the URL as the job has it, for messages; `url` is where the file is, http or https.
  // What `watch` points at and `options` must outlive the object.
  Fetcher(const RemoteOptions& options, std::string name, std::string url, Watch watch);

  // Size and version, by a request for the first byte. FailedPrecondition if the server ignores
  // ranges and the file has more than a block.
  absl::StatusOr<FileVersion> Look();

  // Appends the bytes [begin, end) to `to`; the caller takes them from the size of the version.
  // FailedPrecondition if the file has another version now.
  absl::Status Read(const FileVersion& version, int64_t begin, int64_t end, std::string* to);

  // The whole answer, of at most `most` bytes, and the URL in its Link header with rel="next"
  // (empty: none): for lists of the Hub.
  struct Page {
    std::string body;
    std::string next;
  };
  absl::StatusOr<Page> Get(size_t most);

 private:
  absl::StatusOr<HttpReply> Send(const std::string& range, size_t most);
  absl::StatusOr<HttpReply> SendTo(const std::string& url, const std::string& range, size_t most);
  absl::StatusOr<std::string> Follow(const std::string& from, const HttpReply& reply) const;
  std::string EndpointOrigin() const;
  std::string HowToBeAllowed() const;
  std::string HowToBeFound() const;
  absl::Status Failed(const HttpReply& reply) const;
  absl::StatusOr<Outcome> TakeLook(const HttpReply& reply, FileVersion* version) const;
  absl::StatusOr<Outcome> TakeRange(const HttpReply& reply, const FileVersion& version,
                                    int64_t begin, int64_t end, std::string* to) const;

  const RemoteOptions& options_;
  const std::string name_;
  const std::string url_;
  const Watch watch_;
  HttpClient client_;
  // Where the last redirect led, and until when the next request goes there directly.
  std::string landed_;
  absl::Duration landed_until_;
};

}  // namespace nsa::train
