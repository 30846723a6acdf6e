#include "worker/train/data/read/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "common/job/data/file_kind.h"
#include "common/job/data/file_text.h"
#include "common/job/data/url.h"
#include "worker/train/data/read/data_file.h"

namespace nsa::train {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

// The bytes of a file as they are.
class PlainStream : public ByteStream {
 public:
  PlainStream(std::string name, ReadProgress* progress)
      : progress_(progress), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  absl::Status CheckCancelled() const {
    if (!progress_->cancelled) return absl::OkStatus();
    return absl::CancelledError(absl::StrCat(name_, ": cancelled"));
  }

 protected:
  ReadProgress* const progress_;

 private:
  const std::string name_;
};

class LocalStream final : public PlainStream {
 public:
  LocalStream(Fd fd, std::string name, ReadProgress* progress)
      : PlainStream(std::move(name), progress), fd_(std::move(fd)) {}

  absl::StatusOr<size_t> Read(std::span<char> to) override {
    NSA_RETURN_IF_ERROR(CheckCancelled());
    ssize_t count = 0;
    do {
      count = read(fd_.get(), to.data(), to.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name(), ": read"));
    progress_->bytes += count;
    return static_cast<size_t>(count);
  }

 private:
  const Fd fd_;
};

class RemoteStream final : public PlainStream {
 public:
  RemoteStream(DataFile file, ReadProgress* progress)
      : PlainStream(file.name(), progress), file_(std::move(file)) {
    file_.ExpectUpTo(file_.size());
  }

  absl::StatusOr<size_t> Read(std::span<char> to) override {
    const auto left = static_cast<size_t>(file_.size() - position_);
    to = to.first(std::min(to.size(), left));
    NSA_RETURN_IF_ERROR(file_.ReadAt(position_, to));
    position_ += std::ssize(to);
    return to.size();
  }

 private:
  const DataFile file_;
  int64_t position_ = 0;
};

// A buffer of compressed input, refilled from the file in chunks.
class Input {
 public:
  explicit Input(std::unique_ptr<PlainStream> file) : file_(std::move(file)), buffer_(kChunk) {}

  // False at the end of the file.
  absl::StatusOr<bool> Refill() {
    NSA_ASSIGN_OR_RETURN(size_, file_->Read(buffer_));
    return size_ > 0;
  }
  char* data() { return buffer_.data(); }
  size_t size() const { return size_; }

  // Call it for every read: little input can have very much output.
  absl::Status CheckCancelled() const { return file_->CheckCancelled(); }

  absl::Status Damaged(std::string_view why) const {
    return absl::DataLossError(absl::StrFormat(
        "%s: %s; the archive is damaged or was cut off, copy it again", file_->name(), why));
  }

  // For bytes that do not begin a part of an archive (a gzip member, a Zstandard frame).
  absl::Status NotAnArchive(std::string_view kind, int64_t parts_before) const {
    if (parts_before == 0) {
      return absl::DataLossError(absl::StrFormat(
          "%s: is not a %s archive, as the ending of its name says; rename it or copy it again",
          file_->name(), kind));
    }
    return Damaged(absl::StrFormat("bytes that are not %s follow the end of the archive", kind));
  }

 private:
  const std::unique_ptr<PlainStream> file_;
  std::vector<char> buffer_;
  size_t size_ = 0;
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<PlainStream> file) : input_(std::move(file)) {
    inflateInit2(&z_, 15 + 16);  // largest window, gzip header
  }
  ~GzipStream() override { inflateEnd(&z_); }

  absl::StatusOr<size_t> Read(std::span<char> to) override {
    NSA_RETURN_IF_ERROR(input_.CheckCancelled());
    z_.next_out = reinterpret_cast<Bytef*>(to.data());
    z_.avail_out = static_cast<uInt>(to.size());
    while (z_.avail_out == to.size()) {
      if (z_.avail_in == 0) {
        NSA_ASSIGN_OR_RETURN(const bool more, input_.Refill());
        if (!more) {
          if (in_member_) return input_.Damaged("ends within a gzip member");
          if (members_ == 0) return input_.NotAnArchive("gzip", 0);
          return 0;
        }
        z_.next_in = reinterpret_cast<Bytef*>(input_.data());
        z_.avail_in = static_cast<uInt>(input_.size());
      }
      // Zeros behind a member are padding, as gzip(1) takes them.
      while (!in_member_ && members_ > 0 && z_.avail_in > 0 && *z_.next_in == 0) {
        ++z_.next_in;
        --z_.avail_in;
      }
      if (z_.avail_in == 0) continue;
      in_member_ = true;
      const int result = inflate(&z_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {  // another member may follow, as after `cat a.gz b.gz`
        in_member_ = false;
        ++members_;
        inflateReset(&z_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Fault();
      }
    }
    return to.size() - z_.avail_out;
  }

 private:
  absl::Status Fault() const {
    const std::string_view why = z_.msg != nullptr ? z_.msg : "is damaged";
    if (why == "incorrect header check") return input_.NotAnArchive("gzip", members_);
    return input_.Damaged(why);
  }

  Input input_;
  z_stream z_{};
  bool in_member_ = false;
  int64_t members_ = 0;  // read to their ends
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<PlainStream> file)
      : input_(std::move(file)), context_(ZSTD_createDStream()) {
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLog);
  }
  ~ZstdStream() override { ZSTD_freeDStream(context_); }

  absl::StatusOr<size_t> Read(std::span<char> to) override {
    NSA_RETURN_IF_ERROR(input_.CheckCancelled());
    ZSTD_outBuffer out = {to.data(), to.size(), 0};
    while (out.pos == 0) {
      // The decoder may hold output that did not fit. It gets new input only after that is out.
      if (in_.pos == in_.size && !flushing_) {
        NSA_ASSIGN_OR_RETURN(const bool more, input_.Refill());
        if (!more) {
          if (in_frame_) return input_.Damaged("ends within a Zstandard frame");
          if (frames_ == 0) return input_.NotAnArchive("Zstandard", 0);
          return 0;
        }
        in_ = {input_.data(), input_.size(), 0};
      }
      const size_t result = ZSTD_decompressStream(context_, &out, &in_);
      if (ZSTD_getErrorCode(result) == ZSTD_error_prefix_unknown) {
        return input_.NotAnArchive("Zstandard", frames_);
      }
      if (ZSTD_isError(result)) return input_.Damaged(ZSTD_getErrorName(result));
      in_frame_ = result != 0;
      if (!in_frame_) ++frames_;
      flushing_ = out.pos == out.size && in_frame_;
    }
    return out.pos;
  }

 private:
  Input input_;
  ZSTD_DStream* const context_;
  ZSTD_inBuffer in_{};
  bool in_frame_ = false;
  int64_t frames_ = 0;  // read to their ends
  bool flushing_ = false;
};

absl::Status NotText(const std::string& name, const FileKindInfo& info) {
  const bool archive = info.kind == FileKind::kGzip || info.kind == FileKind::kZstd;
  const std::string ending = info.kind == FileKind::kGzip ? ".gz" : ".zst";
  const std::string_view other = info.source != v1::DATA_SOURCE_UNSPECIFIED
                                     ? info.remedy
                                     : "give a file of text or of JSON lines";
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": is ", std::string(info.name), ", not text; ",
                   archive ? absl::StrCat("give its name the ending ", ending, ", or decompress it")
                           : std::string(other)));
}

// Refuses a stream whose first bytes are not those of a text.
class TextStream final : public ByteStream {
 public:
  TextStream(std::unique_ptr<ByteStream> stream, std::string name)
      : stream_(std::move(stream)), name_(std::move(name)) {}

  absl::StatusOr<size_t> Read(std::span<char> to) override {
    NSA_ASSIGN_OR_RETURN(const size_t count, stream_->Read(to));
    if (!checked_ && count > 0) {
      checked_ = true;
      constexpr int64_t kAnySize = int64_t{1} << 40;
      const std::string_view head(to.data(), std::min<size_t>(count, kFileHeadBytes));
      NSA_RETURN_IF_ERROR(CheckIsNoStranger(name_, head));
      const FileKindInfo info = RecogniseFile(head, kAnySize);
      if (!IsReadAsText(info.kind)) return NotText(name_, info);
      if (const auto fault = FaultOfText(std::string_view(to.data(), count))) {
        return absl::InvalidArgumentError(
            absl::StrCat(name_, ": is ", fault->what, "; ", fault->remedy));
      }
    }
    return count;
  }

 private:
  const std::unique_ptr<ByteStream> stream_;
  const std::string name_;
  bool checked_ = false;
};

// The stream that the ending of the name asks for.
std::unique_ptr<ByteStream> Decompressed(std::unique_ptr<PlainStream> file) {
  const std::string_view name = WithoutQuery(file->name());
  if (name.ends_with(".gz")) return std::make_unique<GzipStream>(std::move(file));
  if (name.ends_with(".zst")) return std::make_unique<ZstdStream>(std::move(file));
  return file;
}

absl::StatusOr<std::unique_ptr<PlainStream>> OpenPlain(const std::filesystem::path& path,
                                                       ReadProgress* progress) {
  if (IsUrl(path.native())) {
    NSA_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, progress));
    return std::make_unique<RemoteStream>(std::move(file), progress);
  }
  std::error_code error;
  if (!JobFilesAreLimited() && std::filesystem::is_fifo(path, error)) {
    // By hand. The reader enforces its own time limit.
    Fd pipe(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!pipe.valid()) return absl::ErrnoToStatus(errno, path.string());
    return std::make_unique<LocalStream>(std::move(pipe), path.string(), progress);
  }
  NSA_ASSIGN_OR_RETURN(Fd fd, OpenDataFile(path));
  return std::make_unique<LocalStream>(std::move(fd), path.string(), progress);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const std::filesystem::path& path,
                                                             ReadProgress* progress) {
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<PlainStream> file, OpenPlain(path, progress));
  return std::make_unique<TextStream>(Decompressed(std::move(file)), path.string());
}

bool ByteStream::IsCompressed(const std::filesystem::path& path) {
  return nsa::IsCompressed(WithoutQuery(path.native()));
}

absl::StatusOr<bool> LineReader::Next(std::string_view* line) {
  size_t searched = begin_;
  while (true) {
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      *line = std::string_view(buffer_).substr(begin_, end - begin_);
      begin_ = end + 1;
      ++line_number_;
      return true;
    }
    if (ended_) break;
    buffer_.erase(0, begin_);
    begin_ = 0;
    searched = buffer_.size();
    if (searched > kLongestLine) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s:%d: line of more than %d MiB; is this a file of JSON lines?", name_,
                          line_number_ + 1, kLongestLine >> 20));
    }
    buffer_.resize(searched + kChunk);
    NSA_ASSIGN_OR_RETURN(const size_t count, stream_->Read(std::span(buffer_).subspan(searched)));
    buffer_.resize(searched + count);
    ended_ = count == 0;
  }
  if (begin_ == buffer_.size()) return false;
  *line = std::string_view(buffer_).substr(begin_);
  begin_ = buffer_.size();
  ++line_number_;
  return true;
}

absl::StatusOr<bool> AppendChunk(ByteStream* stream, std::string* to) {
  const size_t size = to->size();
  to->resize(size + kChunk);
  NSA_ASSIGN_OR_RETURN(const size_t count, stream->Read(std::span(*to).subspan(size)));
  to->resize(size + count);
  return count > 0;
}

}  // namespace nsa::train
