# connect.pl HOST PORT: joins standard input and output with a server, by the HTTP proxy
# that FRE_PROXY names as http://USER:PASSWORD@HOST:PORT.
use strict;
use IO::Socket::INET;
use MIME::Base64;

my ($host, $port) = @ARGV;
$host = "[$host]" if $host =~ /:/;
my ($login, $proxy) = $ENV{FRE_PROXY} =~ m{^http://([^@]+)@([^/]+)} or die "FRE_PROXY names no proxy\n";
my $s = IO::Socket::INET->new(PeerAddr => $proxy) or die "connect to the proxy: $!\n";
syswrite $s, "CONNECT $host:$port HTTP/1.1\r\nHost: $host:$port\r\nProxy-Authorization: Basic " . encode_base64($login, "") . "\r\n\r\n";
my $head = "";
while ($head !~ /\r\n\r\n/) { # a byte at a time: what follows is the server's
	sysread($s, my $byte, 1) or die "the proxy ended the connection\n";
	$head .= $byte;
}
$head =~ m{^HTTP/1\.\d 200} or die "cannot connect to $host:$port: " . ($head =~ /^([^\r]*)/)[0] . "\n";

my $child = fork // die "fork: $!\n";
my ($from, $to) = $child ? ($s, \*STDOUT) : (\*STDIN, $s);
while (sysread($from, my $buf, 65536)) {
	for (my $at = 0; $at < length $buf;) {
		$at += syswrite($to, $buf, length($buf) - $at, $at) // exit 1;
	}
}
shutdown $s, 1 unless $child;
kill TERM => $child if $child;
