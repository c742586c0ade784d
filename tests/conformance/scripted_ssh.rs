//! A scripted host answers commands where no session is opened.
