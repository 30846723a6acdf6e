// Objects of an object store. A request is repeated with growing pauses while its answer says that
// it may succeed later: no connection, one that stalls or ends early, HTTP 408, 429 and 5xx. What
// is stored is compared by MD5 with what was sent: the store refuses bytes that arrived damaged
// (Content-MD5, and the SHA-256 that is signed), and its ETag must be theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http.h"
#include "common/s3/access.h"

namespace nsa {

struct S3Options {
  S3Access access;
  bool proxy = false;                                    // as HttpRequest.proxy
  absl::Duration patience = absl::Minutes(2);            // longest time that a request is repeated
  absl::Duration stall = absl::Seconds(60);              // longest time without a byte
  absl::Duration first_pause = absl::Milliseconds(200);  // each further one is twice as long
  absl::Duration longest_pause = absl::Seconds(10);
};

struct S3Object {
  std::string key;
  int64_t size = 0;
  std::string etag;  // without quotes
};

// An upload in parts, which can go on after its process was killed.
struct S3Upload {
  std::string id;                  // empty: not begun
  std::vector<std::string> etags;  // of the parts that are there, from the first on
};

// Errors name the object as s3://BUCKET/KEY and are those of S3Fault(): Unavailable after
// `patience`. Cancelled once `cancelled` is true. Only one thread at a time may use an object.
class S3 {
 public:
  S3(S3Options options, const std::atomic<bool>* cancelled);

  // An object of at most `most` bytes. FailedPrecondition if it is longer.
  absl::StatusOr<std::string> Get(const S3Path& path, size_t most);

  // The bytes [begin, end) of an object that has them.
  absl::StatusOr<std::string> Read(const S3Path& path, int64_t begin, int64_t end);

  // All objects whose keys begin with `prefix`, in order of the keys. FailedPrecondition for more
  // than `most`.
  absl::StatusOr<std::vector<S3Object>> List(const S3Path& prefix, size_t most);

  // Stores an object. DataLoss if the store has other bytes then.
  absl::Status Put(const S3Path& path, std::string_view content);

  // Stores `size` bytes, which `read` gives in pieces from an offset on, as one object: in parts of
  // PartBytes(), or by Put() if there is only one. Goes on with `upload`, which may come from an
  // earlier process, and hands it to `keep` after each change; begins again if the store no longer
  // knows it.
  using Reader = std::function<absl::StatusOr<std::string>(int64_t offset, int64_t bytes)>;
  using Keeper = std::function<absl::Status(const S3Upload&)>;
  absl::Status PutParts(const S3Path& path, int64_t size, const Reader& read, S3Upload upload,
                        const Keeper& keep);

  // 16 MiB, or more for an object that would have more parts than a store allows.
  static int64_t PartBytes(int64_t size);

  // An object that is not there is no error.
  absl::Status Delete(const S3Path& path);

  // Ends an upload that will not go on; its parts would be stored, and paid, for ever.
  absl::Status Abort(const S3Path& path, const std::string& upload_id);

 private:
  struct Call {
    const char* method = "GET";
    std::string query;  // sorted and encoded
    std::string range;
    std::string_view body;
    size_t most = 1 << 20;  // of the answer
  };
  absl::StatusOr<HttpReply> Send(const S3Path& path, const Call& call);
  HttpReply SendOnce(const S3Path& path, const Call& call);
  bool Pause(absl::Duration time) const;
  absl::Status CheckStored(const S3Path& path, std::string_view content, const HttpReply& reply);
  absl::StatusOr<std::string> Begin(const S3Path& path);
  absl::StatusOr<std::string> PutPart(const S3Path& path, const S3Upload& upload,
                                      std::string_view content);
  absl::Status Complete(const S3Path& path, int64_t size, const S3Upload& upload);

  const S3Options options_;
  const std::atomic<bool>* const cancelled_;
  std::atomic<int64_t> bytes_{0};
  HttpClient client_;
};

// Reads an open file, which must outlive it. DataLoss, naming the file, if it has fewer bytes.
S3::Reader PiecesOf(int fd, std::string name);

// "s3://BUCKET/KEY".
std::string S3Name(const S3Path& path);

}  // namespace nsa
