// The keys that somebody presses while a view stands on the screen.
#pragma once

#include <termios.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/connect/interrupt.h"
#include "common/base/fd.h"

namespace nsa::client {

enum class Key {
  kNone,  // none was pressed
  kText,  // a character
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kEscape,
  kBackspace,
  kSuspend,  // Ctrl-Z
  kClosed,   // the terminal is gone
};

struct KeyPress {
  Key key = Key::kNone;
  std::string text;  // of kText: the character in UTF-8
};

// Takes the first key from bytes that a terminal has sent. kNone when they are the beginning of one
// and `more` may come; without more, a lone escape is that key. Sequences of other keys are
// dropped.
KeyPress TakeKey(std::string* bytes, bool more);

// While it lives, the terminal on standard input passes on each key at once and does not show it.
// Its destructor makes the terminal what it was. Ctrl-C stays a signal; no other key ends or stops
// the process, so that it cannot leave without the destructor. For one thread, but for Wake().
class Keyboard {
 public:
  // Null when standard input is not a terminal, or is that of another job of the shell.
  // `interrupt` outlives it.
  static std::unique_ptr<Keyboard> Open(Interrupt* interrupt);
  ~Keyboard();
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;

  // Waits for a key; kNone after `patience`, after Wake(), and on Ctrl-C.
  KeyPress Read(absl::Duration patience);
  // Ends the wait of Read(). Thread-safe.
  void Wake();
  // Stops the processes of this job of the shell, with the terminal as it was, until they continue.
  void Suspend();

 private:
  Keyboard(const termios& before, Fd wake, Interrupt* interrupt);
  void TakeTerminal();
  void GiveBack();
  // Adds what has come within `patience`. False when nothing has, or the terminal is gone.
  bool Receive(absl::Duration patience);

  const termios before_;
  const Fd wake_;
  const Interrupt::Scope scope_;
  std::string bytes_;
  bool closed_ = false;
};

}  // namespace nsa::client
