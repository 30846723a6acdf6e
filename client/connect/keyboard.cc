#include "client/connect/keyboard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <utility>

namespace nsa::client {
namespace {

constexpr char kEscapeByte = '\x1B';
// The bytes of one key come together; a terminal over a slow network takes this long at most.
constexpr absl::Duration kRestOfKey = absl::Milliseconds(50);

struct Sequence {
  std::string_view bytes;
  Key key;
};
constexpr Sequence kSequences[] = {
    {"\x1B[A", Key::kUp},    {"\x1BOA", Key::kUp},      {"\x1B[B", Key::kDown},
    {"\x1BOB", Key::kDown},  {"\x1B[5~", Key::kPageUp}, {"\x1B[6~", Key::kPageDown},
    {"\x1B[H", Key::kHome},  {"\x1BOH", Key::kHome},    {"\x1B[1~", Key::kHome},
    {"\x1B[F", Key::kEnd},   {"\x1BOF", Key::kEnd},     {"\x1B[4~", Key::kEnd},
    {"\r", Key::kEnter},     {"\n", Key::kEnter},       {"\x7F", Key::kBackspace},
    {"\b", Key::kBackspace}, {"\x1A", Key::kSuspend},
};

// The bytes of an escape sequence at the beginning, up to its final one; 0 while that is missing.
size_t SequenceLength(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  if (bytes[1] == 'O') return bytes.size() < 3 ? 0 : 3;
  if (bytes[1] != '[') return 1;  // the escape key, then another one
  for (size_t i = 2; i < bytes.size(); ++i) {
    if (bytes[i] >= '@' && bytes[i] <= '~') return i + 1;
  }
  return 0;
}

// The bytes of the character at the beginning.
size_t CharacterLength(unsigned char first) {
  if (first < 0xC0) return 1;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

KeyPress KeyOf(std::string_view bytes) {
  for (const Sequence& sequence : kSequences) {
    if (bytes == sequence.bytes) return {sequence.key, ""};
  }
  if (bytes == "\x1B") return {Key::kEscape, ""};
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < ' ' || (first >= 0x80 && first < 0xC0)) return {};
  return {Key::kText, std::string(bytes)};
}

}  // namespace

KeyPress TakeKey(std::string* bytes, bool more) {
  while (!bytes->empty()) {
    const bool escape = bytes->front() == kEscapeByte;
    size_t length = escape ? SequenceLength(*bytes) : CharacterLength(bytes->front());
    if (length == 0 || length > bytes->size()) {
      if (more) return {};
      length = escape && bytes->size() == 1 ? 1 : bytes->size();
    }
    const KeyPress key = KeyOf(std::string_view(*bytes).substr(0, length));
    bytes->erase(0, length);
    if (key.key != Key::kNone) return key;
  }
  return {};
}

std::unique_ptr<Keyboard> Keyboard::Open(Interrupt* interrupt) {
  termios before{};
  if (tcgetattr(STDIN_FILENO, &before) != 0) return nullptr;
  if (tcgetpgrp(STDIN_FILENO) != getpgrp()) return nullptr;
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return nullptr;
  return std::unique_ptr<Keyboard>(new Keyboard(before, std::move(wake), interrupt));
}

Keyboard::Keyboard(const termios& before, Fd wake, Interrupt* interrupt)
    : before_(before), wake_(std::move(wake)), scope_(interrupt, [this] { Wake(); }) {
  TakeTerminal();
}

Keyboard::~Keyboard() { GiveBack(); }

void Keyboard::TakeTerminal() {
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  keys.c_cc[VQUIT] = _POSIX_VDISABLE;
  keys.c_cc[VSUSP] = _POSIX_VDISABLE;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
}

void Keyboard::GiveBack() { tcsetattr(STDIN_FILENO, TCSADRAIN, &before_); }

void Keyboard::Wake() {
  const uint64_t one = 1;
  // It can only fail while it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

bool Keyboard::Receive(absl::Duration patience) {
  std::array<pollfd, 2> waits = {pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
  const auto milliseconds =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(patience), 0, 1'000'000));
  if (poll(waits.data(), waits.size(), milliseconds) <= 0) return false;
  if (waits[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_.get(), &count, sizeof(count));
  }
  if (waits[0].revents == 0) return false;
  std::array<char, 256> buffer;
  const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
  closed_ = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
  if (got > 0) bytes_.append(buffer.data(), static_cast<size_t>(got));
  return got > 0;
}

KeyPress Keyboard::Read(absl::Duration patience) {
  if (const KeyPress key = TakeKey(&bytes_, true); key.key != Key::kNone) return key;
  bool came = Receive(bytes_.empty() ? patience : kRestOfKey);
  KeyPress key = TakeKey(&bytes_, came);
  while (key.key == Key::kNone && came && !bytes_.empty()) {
    came = Receive(kRestOfKey);
    key = TakeKey(&bytes_, came);
  }
  if (key.key == Key::kNone && closed_) key.key = Key::kClosed;
  return key;
}

void Keyboard::Suspend() {
  GiveBack();
  kill(0, SIGTSTP);
  TakeTerminal();
}

}  // namespace nsa::client
