#include "common/s3/s3.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/job/data/sha256.h"
#include "common/s3/fault.h"

namespace nsa {
namespace {

constexpr int64_t kPartBytes = 16 << 20;
constexpr int64_t kMostParts = 10'000;
constexpr int kMostPages = 100;                           // of a list, each of up to 1,000 objects
constexpr absl::Duration kLook = absl::Milliseconds(50);  // between looks at `cancelled`

// 16 bytes.
std::string Md5(std::string_view content) {
  std::string sum(16, '\0');
  EVP_Digest(content.data(), content.size(), reinterpret_cast<unsigned char*>(sum.data()), nullptr,
             EVP_md5(), nullptr);
  return sum;
}

std::string Sha256(std::string_view content) {
  Sha256Sum sum;
  sum.Add(content);
  return sum.Hex();
}

std::string Unquoted(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

// With a key of one's own the ETag is no MD5.
bool HasKeyOfItsOwn(const HttpReply& reply) { return reply.encryption.starts_with("aws:kms"); }

// EncodePath() of a value within a query, where a slash is encoded as well.
std::string EncodeValue(const std::string& text) {
  std::string encoded;
  for (const char c : text) encoded += c == '/' ? "%2F" : EncodePath(std::string(1, c));
  return encoded;
}

absl::Status OtherBytes(const S3Path& path, std::string_view has, const std::string& wanted) {
  return absl::DataLossError(absl::StrFormat(
      "%s: the store has ETag %s (%s was sent); is something between here and there "
      "changing what is sent?",
      S3Name(path), CleanLine(CutText(has, 80)), wanted));
}

absl::Status NotThere(const S3Path& path) {
  return absl::UnavailableError(
      absl::StrCat(S3Name(path), ": is not there although its upload has ended"));
}

absl::Status Cancelled(const S3Path& path) {
  return absl::CancelledError(absl::StrCat(S3Name(path), ": cancelled"));
}

}  // namespace

S3::Reader PiecesOf(int fd, std::string name) {
  return
      [fd, file = std::move(name)](int64_t offset, int64_t bytes) -> absl::StatusOr<std::string> {
        std::string piece(static_cast<size_t>(bytes), '\0');
        for (size_t at = 0; at < piece.size();) {
          const ssize_t got =
              pread(fd, &piece[at], piece.size() - at, offset + static_cast<int64_t>(at));
          if (got < 0 && errno == EINTR) continue;
          if (got < 0) return absl::ErrnoToStatus(errno, file);
          if (got == 0)
            return absl::DataLossError(absl::StrCat(file, ": became shorter; write it again"));
          at += static_cast<size_t>(got);
        }
        return piece;
      };
}

std::string S3Name(const S3Path& path) { return absl::StrCat("s3://", path.bucket, "/", path.key); }

S3::S3(S3Options options, const std::atomic<bool>* cancelled)
    : options_(std::move(options)), cancelled_(cancelled), client_(cancelled, &bytes_) {}

int64_t S3::PartBytes(int64_t size) {
  constexpr int64_t kMiB = 1 << 20;
  const int64_t least = (size + kMostParts - 1) / kMostParts;
  return std::max(kPartBytes, (least + kMiB - 1) / kMiB * kMiB);
}

HttpReply S3::SendOnce(const S3Path& path, const Call& call) {
  HttpRequest request = {.url = S3HttpUrl(options_.access, path),
                         .range = call.range,
                         .any_address = true,  // who set the environment chose the endpoint
                         .proxy = options_.proxy,
                         .most_bytes = call.most,
                         .stall = options_.stall,
                         .signature = options_.access.signature};
  if (!call.query.empty()) absl::StrAppend(&request.url, "?", call.query);
  const std::string_view method = call.method;
  if (request.signature && !call.body.empty()) request.signature->body_sha256 = Sha256(call.body);
  if (method == "GET") return client_.Get(request);
  if (method == "DELETE") return client_.Delete(request);
  request.headers.push_back("Content-Type: application/octet-stream");
  request.headers.push_back("Content-MD5: " + absl::Base64Escape(Md5(call.body)));
  return method == "PUT" ? client_.Put(request, call.body) : client_.Post(request, call.body);
}

bool S3::Pause(absl::Duration time) const {
  for (; time > absl::ZeroDuration() && !*cancelled_; time -= kLook) {
    absl::SleepFor(std::min(time, kLook));
  }
  return !*cancelled_;
}

absl::StatusOr<HttpReply> S3::Send(const S3Path& path, const Call& call) {
  const RealClock clock;
  const absl::Duration end = clock.Monotonic() + options_.patience;
  std::minstd_rand random{std::random_device{}()};
  for (absl::Duration pause = options_.first_pause;; pause *= 2) {
    HttpReply reply = SendOnce(path, call);
    if (*cancelled_) return Cancelled(path);
    // The end of an upload in parts is answered by 200 before it has succeeded.
    const bool joins = std::string_view(call.method) == "POST";
    const bool good = reply.status / 100 == 2 && reply.fault.empty() &&
                      !(joins && !XmlText(reply.body, "Code").empty());
    if (good) return reply;
    absl::Status fault = S3Fault(S3Name(path), reply, options_.access);
    if (!absl::IsUnavailable(fault) || clock.Monotonic() >= end) return fault;
    pause = std::min(pause, options_.longest_pause);
    if (!Pause(pause * std::uniform_real_distribution<>(0.5, 1.0)(random))) return Cancelled(path);
  }
}

absl::StatusOr<std::string> S3::Get(const S3Path& path, size_t most) {
  NSA_ASSIGN_OR_RETURN(HttpReply reply, Send(path, {.most = most}));
  if (!reply.too_long) return std::move(reply.body);
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: has more than %d bytes; is it another object?", S3Name(path), most));
}

absl::StatusOr<std::string> S3::Read(const S3Path& path, int64_t begin, int64_t end) {
  if (begin == end) return "";
  NSA_ASSIGN_OR_RETURN(HttpReply reply, Send(path, {.range = absl::StrCat(begin, "-", end - 1),
                                                    .most = static_cast<size_t>(end - begin)}));
  if (reply.status == 206 && std::ssize(reply.body) == end - begin) return std::move(reply.body);
  return absl::DataLossError(absl::StrFormat("%s: %d bytes from byte %d on (%d were asked for)",
                                             S3Name(path), reply.body.size(), begin, end - begin));
}

absl::StatusOr<std::vector<S3Object>> S3::List(const S3Path& prefix, size_t most) {
  std::vector<S3Object> objects;
  std::string token;
  for (int page = 0; page < kMostPages; ++page) {
    const std::string next =
        token.empty() ? "" : absl::StrCat("continuation-token=", EncodeValue(token), "&");
    const std::string query = absl::StrCat(next, "list-type=2&prefix=", EncodeValue(prefix.key));
    NSA_ASSIGN_OR_RETURN(const HttpReply reply, Send({.bucket = prefix.bucket, .key = ""},
                                                     {.query = query, .most = 4 << 20}));
    std::string_view rest = reply.body;
    for (size_t at; (at = rest.find("<Contents>")) != std::string_view::npos;) {
      rest = rest.substr(at);
      S3Object object = {.key = XmlText(rest, "Key"), .etag = Unquoted(XmlText(rest, "ETag"))};
      const bool sized = absl::SimpleAtoi(XmlText(rest, "Size"), &object.size);
      if (object.key.empty() || !sized || object.size < 0) break;
      objects.push_back(std::move(object));
      rest = rest.substr(std::string_view("<Contents>").size());
    }
    if (objects.size() > most) break;
    token = XmlText(reply.body, "IsTruncated") == "true"
                ? XmlText(reply.body, "NextContinuationToken")
                : "";
    if (token.empty()) return objects;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: has more than %d objects; take a folder of its own", S3Name(prefix), most));
}

// Whether the answer to a PUT says that these bytes are stored.
absl::Status S3::CheckStored(const S3Path& path, std::string_view content, const HttpReply& reply) {
  const std::string sent = absl::BytesToHexString(Md5(content));
  if (Unquoted(reply.etag) == sent || HasKeyOfItsOwn(reply)) return absl::OkStatus();
  return OtherBytes(path, reply.etag, sent);
}

absl::Status S3::Put(const S3Path& path, std::string_view content) {
  NSA_ASSIGN_OR_RETURN(const HttpReply reply, Send(path, {.method = "PUT", .body = content}));
  return CheckStored(path, content, reply);
}

absl::StatusOr<std::string> S3::Begin(const S3Path& path) {
  NSA_ASSIGN_OR_RETURN(const HttpReply reply, Send(path, {.method = "POST", .query = "uploads="}));
  std::string id = XmlText(reply.body, "UploadId");
  if (!id.empty()) return id;
  return absl::FailedPreconditionError(
      absl::StrCat(S3Name(path), ": the store begins no upload in parts; take another one"));
}

absl::StatusOr<std::string> S3::PutPart(const S3Path& path, const S3Upload& upload,
                                        std::string_view content) {
  const std::string query =
      absl::StrCat("partNumber=", upload.etags.size() + 1, "&uploadId=", EncodeValue(upload.id));
  NSA_ASSIGN_OR_RETURN(const HttpReply reply,
                       Send(path, {.method = "PUT", .query = query, .body = content}));
  NSA_RETURN_IF_ERROR(CheckStored(path, content, reply));
  return Unquoted(reply.etag);
}

// Joins the parts, and compares what the store then has with what was sent.
absl::Status S3::Complete(const S3Path& path, int64_t size, const S3Upload& upload) {
  std::string list = "<CompleteMultipartUpload>";
  std::string sums;
  for (size_t i = 0; i < upload.etags.size(); ++i) {
    absl::StrAppend(&list, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>&quot;",
                    upload.etags[i], "&quot;</ETag></Part>");
    const std::string& etag = upload.etags[i];
    const bool md5 = etag.size() == 32 && std::ranges::all_of(etag, [](unsigned char c) {
                       return absl::ascii_isxdigit(c);
                     });
    if (md5) sums += absl::HexStringToBytes(etag);
  }
  list += "</CompleteMultipartUpload>";
  const std::string query = absl::StrCat("uploadId=", EncodeValue(upload.id));
  const auto joined = Send(path, {.method = "POST", .query = query, .body = list});
  if (!joined.ok() && !absl::IsNotFound(joined.status())) return joined.status();
  NSA_ASSIGN_OR_RETURN(const std::vector<S3Object> stored, List(path, 1'000));
  const auto own = std::ranges::find(stored, path.key, &S3Object::key);
  const std::string sent =
      absl::StrCat(absl::BytesToHexString(Md5(sums)), "-", upload.etags.size());
  // The upload is over: either the answer that said so was lost, or the store has forgotten it.
  if (!joined.ok()) {
    const bool done = own != stored.end() && own->size == size && own->etag == sent;
    return done ? absl::OkStatus() : joined.status();
  }
  if (own == stored.end()) return NotThere(path);
  if (own->size != size) {
    return absl::DataLossError(absl::StrFormat("%s: the store has %d bytes (%d were sent)",
                                               S3Name(path), own->size, size));
  }
  const bool comparable = own->etag.size() == sent.size() &&
                          own->etag.find('-') == sent.find('-') && !HasKeyOfItsOwn(*joined);
  return comparable && own->etag != sent ? OtherBytes(path, own->etag, sent) : absl::OkStatus();
}

absl::Status S3::PutParts(const S3Path& path, int64_t size, const Reader& read, S3Upload upload,
                          const Keeper& keep) {
  const int64_t part_bytes = PartBytes(size);
  if (size <= part_bytes) {
    NSA_ASSIGN_OR_RETURN(const std::string content, read(0, size));
    return Put(path, content);
  }
  bool resumed = !upload.id.empty();
  while (true) {
    absl::Status status;
    if (upload.id.empty()) {
      NSA_ASSIGN_OR_RETURN(upload.id, Begin(path));
      NSA_RETURN_IF_ERROR(keep(upload));
    }
    for (int64_t at = std::ssize(upload.etags) * part_bytes; at < size && status.ok();) {
      const int64_t bytes = std::min(part_bytes, size - at);
      NSA_ASSIGN_OR_RETURN(const std::string content, read(at, bytes));
      absl::StatusOr<std::string> etag = PutPart(path, upload, content);
      status = etag.status();
      if (!status.ok()) break;
      upload.etags.push_back(*std::move(etag));
      NSA_RETURN_IF_ERROR(keep(upload));
      at += bytes;
    }
    if (status.ok()) status = Complete(path, size, upload);
    if (!absl::IsNotFound(status) || !resumed) return status;
    resumed = false;  // the store has forgotten the upload of the earlier process
    upload = {};
  }
}

absl::Status S3::Delete(const S3Path& path) {
  const auto reply = Send(path, {.method = "DELETE"});
  return absl::IsNotFound(reply.status()) ? absl::OkStatus() : reply.status();
}

absl::Status S3::Abort(const S3Path& path, const std::string& upload_id) {
  const auto reply =
      Send(path, {.method = "DELETE", .query = absl::StrCat("uploadId=", EncodeValue(upload_id))});
  return absl::IsNotFound(reply.status()) ? absl::OkStatus() : reply.status();
}

}  // namespace nsa
